package discovery

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// What the operator can set, as internal/config calls it.
const (
	settingPath    = "IMAGE_PATH"
	settingSeveral = "MULTI_DISK"
)

// maxListed is how many names an error lists.
const maxListed = 32

const wayOutOfNone = "put one there, in a Dockerfile with\n\tADD fedora.qcow2 /disk/\nor mount a volume that has one, or set " + settingPath

func wayOutOfProblems(path string) string {
	return fmt.Sprintf("leave only images in it, or set %s to the one that is meant, as in %s",
		settingPath, show(filepath.Join(path, "fedora.qcow2")))
}

func wayOutOfSeveral(path string, disks []Disk) string {
	return fmt.Sprintf("set %s=%s for that one alone, or %s=true to serve them all in this order",
		settingPath, show(filepath.Join(path, disks[0].Name)), settingSeveral)
}

// missing is the error for a path where nothing is.
func missing(path string, err error) error {
	return fmt.Errorf("%s: no image: %s; %s", show(path), reason(err), wayOutOfNone)
}

// report is an error that lists what was found.
func report(path, what string, found []entry, wayOut string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s:\n", show(path), what)
	width := 0
	for _, e := range found {
		width = max(width, len(show(e.name)))
	}
	for i, e := range found {
		if i == maxListed {
			fmt.Fprintf(&b, "\tand %d more\n", len(found)-i)
			break
		}
		fmt.Fprintf(&b, "\t%-*s  %s\n", width, show(e.name), e.description())
	}
	if len(found) == 0 {
		b.WriteString("\tthe directory is empty\n")
	}
	b.WriteString(wayOut)
	return errors.New(b.String())
}

// description is what the list says about an entry.
func (e entry) description() string {
	switch {
	case e.ignored:
		return "not looked at: hidden or a file system's own"
	case e.problem != "":
		return e.problem
	case e.link != "":
		return fmt.Sprintf("%s, %s, a link to %s", e.format, sizeText(e.size), show(e.link))
	}
	return fmt.Sprintf("%s, %s", e.format, sizeText(e.size))
}

// show quotes a name that would spoil the message: names come from images.
func show(name string) string {
	const longest = 200 // bytes
	if len(name) > longest {
		name = name[:longest] + "..."
	}
	if q := strconv.Quote(name); q[1:len(q)-1] != name {
		return q
	}
	return name
}

// sizeText is a size for people.
func sizeText(n int64) string {
	const unit, prefixes = 1024, "KMGTPE"
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	f, i := float64(n)/unit, 0
	for ; f >= unit && i < len(prefixes)-1; i++ {
		f /= unit
	}
	return fmt.Sprintf("%.1f %ciB", f, prefixes[i])
}
