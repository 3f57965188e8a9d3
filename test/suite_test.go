//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// libiscsi's conformance suite. Here is how its tests are listed, run and
// judged, and the run of all of them in one process, as a newcomer does it:
// there one test's left-overs reach the next. conformance_test.go runs each in
// a process of its own, which is the fair measure.

const (
	suiteLimit     = 4 * time.Minute // for all tests in one process
	suiteTestLimit = 2 * time.Minute // for one test; Sanitize.Reset sleeps for one
)

// A line of CUnit's summary: total, ran, passed, failed, inactive.
var summaryLine = regexp.MustCompile(`(?m)^ +tests +(\d+) +(\d+) +(\d+) +(\d+) +\d+$`)

// summary reads the counts out of a run's output.
func summary(out string) (ran, passed, failed int, ok bool) {
	m := summaryLine.FindStringSubmatch(out)
	if m == nil {
		return 0, 0, 0, false
	}
	var n [5]int
	for i := range m[1:] {
		n[i], _ = strconv.Atoi(m[i+1]) // the pattern has let only digits through
	}
	return n[1], n[2], n[3], true
}

// suiteTests lists the suite's tests, which have three-part names.
func suiteTests(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, name := range strings.Fields(command(t, "iscsi-test-cu", "-l")) {
		if strings.HasPrefix(name, "ALL.") && strings.Count(name, ".") == 2 {
			names = append(names, name)
		}
	}
	if len(names) < 200 {
		t.Fatalf("the list has only %d tests", len(names))
	}
	return names
}

// runSuite runs the tests matching pattern. Loss of data is allowed, and what
// the flags add. The url is given a second time as a second path to the same disk,
// without which some tests have nothing to do.
func runSuite(t *testing.T, url, pattern string, limit time.Duration, flags ...string) (out string, ended bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := append(flags, "--dataloss", "-n", "-t", pattern, url, url)
	b, err := exec.CommandContext(ctx, "iscsi-test-cu", args...).CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Sprintf("%s\n[HANGS] no end after %v", b, limit), false
	}
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.Exited()) {
		return fmt.Sprintf("%s\n[ABORTED] %v", b, err), false
	}
	_, _, _, ok := summary(string(b))
	return string(b), ok
}

// verdict is how a test ended.
type verdict uint8

const (
	passed  verdict = iota
	skipped         // any part of it; the suite itself calls that passed
	failed
	aborted // it crashed or hung
)

// outcome is one test's end, with what it had to say unless it passed.
type outcome struct {
	name    string // FAMILY.TEST
	verdict verdict
	reasons []string
}

func (o outcome) family() string { f, _, _ := strings.Cut(o.name, "."); return f }

// singly runs each test in a process of its own.
func singly(t *testing.T, url string) []outcome {
	t.Helper()
	var all []outcome
	around := skips(ranWell(t, url))
	for _, name := range suiteTests(t) {
		out, ended := runSuite(t, url, name, suiteTestLimit, "--allow-sanitize")
		all = append(all, judge(strings.TrimPrefix(name, "ALL."), out, ended, around))
	}
	return all
}

// ranWell gives the output of a test that passes and skips nothing.
func ranWell(t *testing.T, url string) string {
	t.Helper()
	out, ended := runSuite(t, url, "ALL.TestUnitReady.Simple", suiteTestLimit)
	if _, passed, _, _ := summary(out); !ended || passed != 1 {
		t.Fatalf("TEST UNIT READY does not pass:\n%s", tail(out))
	}
	return out
}

// judge reads a test's output. What the tool skips around each test, where it
// looks for reservations to clear, is not the test's.
func judge(name, out string, ended bool, around map[string]int) outcome {
	_, good, bad, _ := summary(out)
	switch own := lessThan(skips(out), around); {
	case !ended:
		return outcome{name, aborted, complaints(out)}
	case bad > 0 || good != 1:
		return outcome{name, failed, complaints(out)}
	case len(own) > 0:
		return outcome{name, skipped, own}
	}
	return outcome{name, passed, nil}
}

var skipLine = regexp.MustCompile(`\[SKIPPED\] *(.*)`)

// skips counts the skips in an output by their reasons.
func skips(out string) map[string]int {
	n := map[string]int{}
	for _, m := range skipLine.FindAllStringSubmatch(out, -1) {
		n[strings.TrimSpace(m[1])]++
	}
	return n
}

// lessThan lists what is in all more often than in around.
func lessThan(all, around map[string]int) []string {
	var more []string
	for reason, n := range all {
		if n > around[reason] {
			more = append(more, reason)
		}
	}
	slices.Sort(more)
	return more
}

var complaintLine = regexp.MustCompile(`\[(FAILED|HANGS|ABORTED)\].*|(?m)^ +\d+\. .*`)

// complaints are the reasons that a test's output gives, each once.
func complaints(out string) []string {
	var all []string
	for _, line := range complaintLine.FindAllString(out, -1) {
		if line = strings.TrimSpace(line); !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	if len(all) == 0 {
		return []string{"no reason given: " + tail(out)}
	}
	return all
}

// report writes the result where it is seen without -v as well.
func report(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }

func suiteDisk(t *testing.T, format string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk."+format)
	command(t, "qemu-img", "create", "-f", format, file, "256M")
	return file
}

// TestSuite runs all tests in one process: the server has to survive it,
// whatever its tests find, and to leave nothing behind. SANITIZE is left out:
// with a second path Sanitize.Reservations leaves a reservation to the test
// after it, which takes longer than all others together.
func TestSuite(t *testing.T) {
	require(t, "iscsi-test-cu", "iscsi-inq", "qemu-img")
	s := serve(t, suiteDisk(t, "raw"), env{"ACCESS_MODE": "write-shared"})
	files := s.openFiles(t)
	out, ended := runSuite(t, s.url(), "ALL", suiteLimit)
	if !ended {
		t.Fatalf("the run has no end:\n%s", tail(out))
	}
	ran, good, bad, _ := summary(out)
	report("iscsi-test-cu, one process, containerdisk: %d tests: %d passed or skipped, %d failed", ran, good, bad)
	if bad > 0 || ran < len(suiteTests(t)) {
		t.Errorf("%d failed, %d ran:\n%s", bad, ran, strings.Join(complaints(out), "\n"))
	}
	checkLogin(t, attempt(t, "iscsi-inq", s.url()), "")
	settle(t, s, files)
}

func tail(s string) string { return s[max(0, len(s)-4000):] }
