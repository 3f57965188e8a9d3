//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

// documented is where what does not pass has its reason.
const documented = "../docs/SPECS.md"

// broken are the tests that no target can pass in the tools named, and why.
// docs/SPECS.md lists them too.
var broken = map[string]string{
	// test_async_lu_reset_simple.c of 1.19.0 asserts that the reset has been
	// answered as soon as it has queued the request, logs out, and then frees
	// what the answer's callback uses: it crashes or fails. Its siblings and
	// target/iscsi's own tests show the reset.
	"iSCSITMF.LUNResetSimpleAsync": "the test wants the answer before it has sent the request, and crashes",
}

// silent are the tests that write and do not say how the disk refused; those
// that copy say COPY ABORTED, whatever the reason is.
var silent = []string{"Write10.Async", "iSCSITMF.AbortTaskSimpleAsync",
	"ExtendedCopy.Simple", "ExtendedCopy.ValidTgtDescr", "ReceiveCopyResults.CopyStatus"}

// pass is one run of the suite: a disk, and how to log in.
type pass struct {
	name    string
	format  string
	env     env
	mutual  bool
	options []string // of the url

	// protected: the disk takes no writes, so the tests that want to write
	// fail, each by being told so.
	protected bool
}

// The passes. Two tests of newer suites want to log in by a name that looks
// like a number; so do we with all of them. Newer libraries also know other
// hashes than MD5, which older ones offer whatever they are told.
var passes = []pass{
	{name: "raw", format: "raw",
		env: env{"CHAP_USERNAME": "0x7265616465722d31", "CHAP_ALGORITHMS": "md5"}},
	{name: "qcow2", format: "qcow2", mutual: true, options: []string{"header_digest=crc32c", "auth=sha-256"},
		env: env{"CHAP_USERNAME": "0bcmVhZGVyLTE="}},
	{name: "read-only", format: "raw", protected: true, options: []string{"auth=sha3-256"},
		env: env{"ACCESS_MODE": "read-shared"}},
}

// start serves the pass's disk and gives its url.
func (p pass) start(t *testing.T) string {
	t.Helper()
	s := serve(t, suiteDisk(t, p.format), env{"ACCESS_MODE": "write-shared"}.with(p.env))
	options := p.options
	if p.mutual {
		options = append(s.target.mutual(), options...)
	}
	return s.url(options...)
}

// excused reports whether a test may end as it did.
func (p pass) excused(o outcome) bool {
	switch {
	case o.verdict == passed || o.verdict == skipped:
		return true
	case broken[o.name] != "":
		return true
	case !p.protected || o.verdict == aborted:
		return false
	}
	return slices.Contains(silent, o.name) || refusedWrite(o)
}

// refusedWrite reports whether every complaint of the tool's is of a command
// that was refused by the write protection. The lines with numbers are
// assertions that follow from it.
func refusedWrite(o outcome) bool {
	told := false
	for _, r := range o.reasons {
		if !strings.HasPrefix(r, "[FAILED]") {
			continue
		}
		if !strings.Contains(r, "0x2700") && !strings.Contains(r, "status 251658241") { // cancelled after the first failure
			return false
		}
		told = told || strings.Contains(r, "0x2700")
	}
	return told
}

// TestConformance runs libiscsi's suite in every pass. Nothing may fail but
// what is broken, and nothing be skipped but what docs/SPECS.md has a reason
// for.
func TestConformance(t *testing.T) {
	require(t, "iscsi-test-cu", "iscsi-inq", "qemu-img")
	specs := readText(t, documented)
	var columns []column
	for _, p := range passes {
		t.Run(p.name, func(t *testing.T) {
			url := p.start(t)
			all := singly(t, url)
			columns = append(columns, column{p.name, all, p.excused})
			for _, o := range all {
				if !p.excused(o) {
					t.Errorf("%s: %s", o.name, strings.Join(o.reasons, "\n\t"))
				}
			}
			for reason, tests := range skipReasons(all) {
				if !strings.Contains(specs, "`"+reason+"`") {
					t.Errorf("%s does not say why %d tests are skipped: %s", documented, len(tests), reason)
				}
			}
			checkLogin(t, attempt(t, "iscsi-inq", url), "")
		})
	}
	report("%s", table(columns))
}

// TestConformancePeers has the numbers of another target beside ours, from one
// machine and day. It judges nobody.
func TestConformancePeers(t *testing.T) {
	if os.Getenv("E2E_COMPARE") != "tgtd" {
		t.Skip("E2E_COMPARE is not tgtd")
	}
	require(t, "iscsi-test-cu", "qemu-img")
	ours := passes[0]
	columns := []column{{"containerdisk", singly(t, ours.start(t)), ours.excused}}
	columns = append(columns, column{"tgtd", singly(t, startTgtd(t, suiteDisk(t, "raw")).url()), pass{}.excused})
	report("%s", table(columns))
}

// TestBrokenTestsAreDocumented holds the list of excuses to the document.
func TestBrokenTestsAreDocumented(t *testing.T) {
	specs := readText(t, documented)
	for _, name := range append(slices.Collect(maps.Keys(broken)), silent...) {
		if !strings.Contains(specs, "`"+name+"`") {
			t.Errorf("%s does not name %s", documented, name)
		}
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// column is a target's results.
type column struct {
	name    string
	all     []outcome
	excused func(outcome) bool
}

// score counts verdicts.
type score struct{ passed, skipped, excused, failed int }

func (s score) String() string {
	text := fmt.Sprintf("%d/%d/%d", s.passed, s.skipped, s.failed)
	if s.excused > 0 {
		text += fmt.Sprintf(" (%d)", s.excused)
	}
	return text
}

// score counts the tests of a family, or of all for "".
func (c column) score(family string) score {
	var s score
	for _, o := range c.all {
		switch {
		case family != "" && o.family() != family:
		case o.verdict == passed:
			s.passed++
		case o.verdict == skipped:
			s.skipped++
		case c.excused(o):
			s.excused++
		default:
			s.failed++
		}
	}
	return s
}

// skipReasons gives the tests that were skipped, by reason.
func skipReasons(all []outcome) map[string][]string {
	by := map[string][]string{}
	for _, o := range all {
		if o.verdict != skipped {
			continue
		}
		for _, r := range o.reasons {
			by[r] = append(by[r], o.name)
		}
	}
	return by
}

// table prints the columns side by side, one family a line, and then each
// column's skips and failures with their reasons.
func table(columns []column) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprint(w, "passed/skipped/failed (excused: docs/SPECS.md)")
	for _, c := range columns {
		fmt.Fprintf(w, "\t%s", c.name)
	}
	for _, family := range append(families(columns), "") {
		fmt.Fprintf(w, "\n%s", family)
		if family == "" {
			fmt.Fprint(w, "all")
		}
		for _, c := range columns {
			fmt.Fprintf(w, "\t%v", c.score(family))
		}
	}
	fmt.Fprintln(w)
	w.Flush()
	n := notes{}
	for _, c := range columns {
		c.explain(n)
	}
	for _, note := range slices.Sorted(maps.Keys(n)) {
		fmt.Fprintf(&b, "%s: %s\n", strings.Join(n[note], ", "), note)
	}
	return b.String()
}

// notes are remarks, each with the columns that it is about.
type notes map[string][]string

// families lists the families that any column has, in the suite's order.
func families(columns []column) []string {
	var all []string
	for _, c := range columns {
		for _, o := range c.all {
			if !slices.Contains(all, o.family()) {
				all = append(all, o.family())
			}
		}
	}
	return all
}

// explain notes why tests of the column did not pass.
func (c column) explain(n notes) {
	note := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		n[text] = append(n[text], c.name)
	}
	for reason, tests := range skipReasons(c.all) {
		note("skipped: %s\n    %s", reason, strings.Join(tests, " "))
	}
	var refused []string
	for _, o := range c.all {
		switch {
		case o.verdict == passed || o.verdict == skipped:
		case broken[o.name] != "":
			note("broken: %s\n    %s", broken[o.name], o.name)
		case c.excused(o):
			refused = append(refused, o.name)
		default:
			note("failed: %s\n    %s", o.reasons[0], o.name)
		}
	}
	if len(refused) > 0 {
		note("refused, the disk being write-protected:\n    %s", strings.Join(refused, " "))
	}
}
