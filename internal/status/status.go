// Package status tells what the program is doing: its phase, how far copies
// are, what the wires count. People and machines read it over HTTP (/healthz,
// /readyz, /status, /metrics), the kubelet in a file that exists while the
// disks are served, and in the container's termination message.
//
// The package knows no wire: what is counted elsewhere comes through functions
// given to New.
package status

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Phase is where the program is in its life. It only goes forward.
type Phase uint8

const (
	Starting   Phase = iota // reading the configuration, opening images
	Populating              // containerdisk populate fills a volume; nobody is served
	Ready                   // served; a copy may still go on behind the guest
	Draining                // no new clients; those attached are served
	Stopped                 // ended as it should
	Failed                  // ended because it could not go on
)

var phaseNames = [...]string{"starting", "populating", "ready", "draining", "stopped", "failed"}

func (p Phase) String() string { return phaseNames[p] }

// MarshalText makes JSON show the name.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Options are what New needs to know.
type Options struct {
	Version  string // of the program
	Revision string // it was built from

	// Stats returns what each wire has counted so far. It is called for every
	// page that shows it; nil: there are no wires.
	Stats func() []WireStats

	HealthFile     string // exists while the phase is Ready; "": none
	TerminationLog string // gets the phase when there is such a file; "": none

	Log *slog.Logger
}

// WireStats is what one wire has counted since the start.
type WireStats struct {
	Wire          string      `json:"wire"`     // "iscsi"
	Sessions      int64       `json:"sessions"` // open now
	Logins        int64       `json:"logins"`
	LoginFailures int64       `json:"loginFailures"`
	Disks         []DiskStats `json:"disks,omitempty"`
}

// DiskStats is what one wire has done to one disk.
type DiskStats struct {
	Name       string `json:"name"`
	Reads      uint64 `json:"reads"`
	Writes     uint64 `json:"writes"`
	ReadBytes  uint64 `json:"readBytes"`
	WriteBytes uint64 `json:"writeBytes"`
	Flushes    uint64 `json:"flushes"`
	Errors     uint64 `json:"errors"` // commands that failed below the wire
}

// Disk is one disk as /status shows it.
type Disk struct {
	Name   string `json:"name"`
	Image  string `json:"image"`  // path of the image file
	Format string `json:"format"` // of the image
	Size   int64  `json:"size"`   // of the disk, bytes
	URL    string `json:"url"`    // where clients find it, without credentials; "" while nobody does
}

// Status is the state of one run of the program. Its methods may be called
// from several goroutines.
type Status struct {
	o       Options
	started time.Time

	// mu guards the fields below. It is held across the writing of the health
	// file and the termination message, so that they change in order.
	mu      sync.Mutex
	phase   Phase
	message string
	since   time.Time // of the phase
	disks   []Disk
	copies  []*Progress // in the order in which they began
	health  healthFile
}

// New returns the status of a program that starts. A health file that an
// earlier run left behind is removed.
func New(o Options) *Status {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	now := time.Now()
	s := &Status{o: o, started: now, since: now, health: healthFile{path: o.HealthFile, log: o.Log}}
	s.health.removeStale()
	return s
}

// SetPhase tells that the program has come to phase p; message says more to
// people. A step back is ignored: a copy that ends while the program drains
// does not make it ready. The same phase again changes the message, except at
// the end: what is told after the first failure followed from it.
func (s *Status) SetPhase(p Phase, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p < s.phase || s.phase >= Stopped {
		return
	}
	if p != s.phase {
		s.since = time.Now()
	}
	s.phase, s.message = p, message
	s.o.Log.Info("phase", "phase", p.String(), "message", message)
	if p == Ready {
		s.health.create()
	} else {
		s.health.remove()
	}
	writeTermination(s.o.TerminationLog, p.String()+": "+message, s.o.Log)
}

// Fail tells that the program ends because of err.
func (s *Status) Fail(err error) { s.SetPhase(Failed, err.Error()) }

// Phase returns the phase and its message.
func (s *Status) Phase() (Phase, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase, s.message
}

// SetDisks tells which disks there are.
func (s *Status) SetDisks(disks []Disk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks = slices.Clone(disks)
}

// Copy begins a copy that belongs to the disk with the name, and returns where
// to tell how far it is.
func (s *Status) Copy(disk string) *Progress {
	p := newProgress(disk)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies = slices.DeleteFunc(s.copies, func(c *Progress) bool { return c.disk == disk })
	s.copies = append(s.copies, p)
	return p
}

// Report is what /status returns as JSON. Fields may be added; those that are
// there keep their names and meanings.
type Report struct {
	Phase    Phase     `json:"phase"`
	Message  string    `json:"message,omitempty"` // what is being done, or why it failed
	Ready    bool      `json:"ready"`             // clients are served and new ones let in
	Since    time.Time `json:"since"`             // of the phase
	Started  time.Time `json:"started"`
	Version  string    `json:"version"`
	Revision string    `json:"revision,omitempty"`

	Disks  []Disk         `json:"disks"`
	Copies []CopyProgress `json:"copies"`
	Wires  []WireStats    `json:"wires"`
}

// Report returns the status at this moment.
func (s *Status) Report() Report {
	r := Report{Version: s.o.Version, Revision: s.o.Revision, Started: s.started, Wires: s.stats()}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Phase, r.Message, r.Since, r.Ready = s.phase, s.message, s.since, s.phase == Ready
	r.Disks = append([]Disk{}, s.disks...) // [] and not null, for those who loop over it
	r.Copies = []CopyProgress{}
	for _, c := range s.copies {
		r.Copies = append(r.Copies, c.Snapshot())
	}
	return r
}

func (s *Status) stats() []WireStats {
	if s.o.Stats == nil {
		return []WireStats{}
	}
	return s.o.Stats()
}
