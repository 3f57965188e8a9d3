package status

import (
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// registry returns a registry of our own: what other packages register
// globally is none of ours.
func (s *Status) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collector{s},
	)
	return r
}

// metric describes a metric of ours: its kind and the names of its labels.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newMetric(kind prometheus.ValueType, name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("containerdisk_"+name, help, labels, nil), kind}
}

var (
	buildInfo = newMetric(prometheus.GaugeValue, "build_info",
		"1, with the version of the program.", "version", "revision", "goversion")
	phaseMetric = newMetric(prometheus.GaugeValue, "phase",
		"1 for the phase the program is in, 0 for the others.", "phase")
	sizeBytes = newMetric(prometheus.GaugeValue, "disk_size_bytes",
		"Size of the disk.", "disk")
	copyBytes = newMetric(prometheus.GaugeValue, "copy_bytes",
		"Bytes of the disk that its copy has to make.", "disk")
	copyDoneBytes = newMetric(prometheus.GaugeValue, "copy_done_bytes",
		"Bytes of the disk that its copy has made.", "disk")
)

// wireMetrics is a row for each count of a wire.
var wireMetrics = []struct {
	metric
	value func(WireStats) int64
}{
	{newMetric(prometheus.GaugeValue, "sessions", "Clients that are logged in.", "wire"),
		func(w WireStats) int64 { return w.Sessions }},
	{newMetric(prometheus.CounterValue, "logins_total", "Logins that succeeded.", "wire"),
		func(w WireStats) int64 { return w.Logins }},
	{newMetric(prometheus.CounterValue, "login_failures_total", "Logins that were refused.", "wire"),
		func(w WireStats) int64 { return w.LoginFailures }},
}

// diskMetrics is a row for each count of a disk on a wire.
var diskMetrics = []struct {
	metric
	value func(DiskStats) uint64
}{
	{newMetric(prometheus.CounterValue, "disk_reads_total", "Read commands.", "wire", "disk"),
		func(d DiskStats) uint64 { return d.Reads }},
	{newMetric(prometheus.CounterValue, "disk_writes_total", "Write commands.", "wire", "disk"),
		func(d DiskStats) uint64 { return d.Writes }},
	{newMetric(prometheus.CounterValue, "disk_read_bytes_total", "Bytes read.", "wire", "disk"),
		func(d DiskStats) uint64 { return d.ReadBytes }},
	{newMetric(prometheus.CounterValue, "disk_written_bytes_total", "Bytes written.", "wire", "disk"),
		func(d DiskStats) uint64 { return d.WriteBytes }},
	{newMetric(prometheus.CounterValue, "disk_flushes_total", "Flush commands.", "wire", "disk"),
		func(d DiskStats) uint64 { return d.Flushes }},
	{newMetric(prometheus.CounterValue, "disk_errors_total", "Commands that failed below the wire.", "wire", "disk"),
		func(d DiskStats) uint64 { return d.Errors }},
}

// collector makes metrics of a Report whenever it is asked.
type collector struct{ s *Status }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range []metric{buildInfo, phaseMetric, sizeBytes, copyBytes, copyDoneBytes} {
		ch <- m.desc
	}
	for _, m := range wireMetrics {
		ch <- m.desc
	}
	for _, m := range diskMetrics {
		ch <- m.desc
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	send := func(m metric, value float64, labels ...string) {
		for i := range labels { // names of files may be anything
			labels[i] = strings.ToValidUTF8(labels[i], "\uFFFD")
		}
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
	}
	r := c.s.Report()
	send(buildInfo, 1, r.Version, r.Revision, runtime.Version())
	for p, name := range phaseNames {
		is := 0.0
		if Phase(p) == r.Phase {
			is = 1
		}
		send(phaseMetric, is, name)
	}
	for _, d := range r.Disks {
		send(sizeBytes, float64(d.Size), d.Name)
	}
	for _, p := range r.Copies {
		send(copyBytes, float64(p.Total), p.Disk)
		send(copyDoneBytes, float64(p.Done), p.Disk)
	}
	for _, w := range r.Wires {
		for _, m := range wireMetrics {
			send(m.metric, float64(m.value(w)), w.Wire)
		}
		for _, d := range w.Disks {
			for _, m := range diskMetrics {
				send(m.metric, float64(m.value(d)), w.Wire, d.Name)
			}
		}
	}
}
