package scsi

// modeBits are the mode parameters that initiators may change. They are shared
// by all nexuses. A reset or a restart brings back those that were saved, or the
// default ones.
type modeBits uint32

const (
	modeSWP             modeBits = 1 << iota // control page, SWP: write protected
	modeDescriptorSense                      // control page, D_SENSE
	modeWriteThrough                         // caching page, WCE is 0: no write cache
	modeTAS                                  // control page, TAS: a command that another nexus aborts ends with TASK ABORTED

	allModes             = modeSWP | modeDescriptorSense | modeWriteThrough | modeTAS
	defaultMode modeBits = 0
)

func (l *LUN) modes() modeBits { return modeBits(l.mode.Load()) }

// modePage is a mode page or a subpage of one. body appends it for a state of
// the parameters; parse returns the state that a received page asks for.
//
// What is changeable is what body makes of the parameters: no second table of
// masks that could contradict the first.
type modePage struct {
	code  byte
	sub   byte // subpageNone: the page itself
	body  func([]byte, modeBits) []byte
	parse func(page []byte) modeBits // nil: nothing can be changed
	bits  modeBits                   // that the page holds
}

// modePages are those that the logical unit has.
func (l *LUN) modePages() []modePage {
	if l.cd != nil {
		return driveModePages()
	}
	return modePages()
}

// modePages are in ascending order. body appends the page from its code on.
func modePages() []modePage {
	return []modePage{
		{pageRecovery, subpageNone, appendRecoveryPage, nil, 0},
		{pageCaching, subpageNone, appendCachingPage, parseCachingPage, modeWriteThrough},
		{pageControl, subpageNone, appendControlPage, parseControlPage, modeSWP | modeDescriptorSense | modeTAS},
		{pageControl, subpageControlExtension, appendControlExtension, nil, 0},
		{pageExceptions, subpageNone, appendExceptionsPage, nil, 0},
	}
}

const (
	pageRecovery   = 0x01
	pageCaching    = 0x08
	pageControl    = 0x0a
	pageExceptions = 0x1c
	pageAll        = 0x3f

	subpageNone             = 0x00
	subpageControlExtension = 0x01
	subpageAll              = 0xff

	modeSPF = 0x40 // in the first byte: a subpage, with a header of four bytes
)

// header is the size of what stands before a page's parameters: code and length.
func (p modePage) header() int {
	if p.sub == subpageNone {
		return 2
	}
	return 4
}

// asked reports whether a code and subpage code of MODE SENSE ask for the page.
func (p modePage) asked(code, sub byte) bool {
	return (code == pageAll || code == p.code) && (sub == subpageAll || sub == p.sub)
}

// SBC "Read-Write Error Recovery mode page": no retries, no reallocation, no
// time limit.
func appendRecoveryPage(b []byte, _ modeBits) []byte {
	return append(b, pageRecovery, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

const (
	cachingFlags = 2
	cachingWCE   = 0x04
)

// SBC "Caching mode page". The cache is the host's: WCE is all that can be
// said of it.
func appendCachingPage(b []byte, m modeBits) []byte {
	flags := byte(cachingWCE)
	if m&modeWriteThrough != 0 {
		flags = 0
	}
	return append(b, pageCaching, 18, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

func parseCachingPage(page []byte) modeBits {
	if page[cachingFlags]&cachingWCE == 0 {
		return modeWriteThrough
	}
	return 0
}

const (
	controlFlags  = 2
	controlDSense = 0x04
	controlAccess = 4
	controlSWP    = 0x08
	controlAborts = 5
	controlTAS    = 0x40
)

// SPC "Control mode page".
func appendControlPage(b []byte, m modeBits) []byte {
	flags, access, aborts := byte(0x02), byte(0), byte(0) // TST 000b; GLTSD: there are no log parameters
	if m&modeDescriptorSense != 0 {
		flags |= controlDSense
	}
	if m&modeSWP != 0 {
		access |= controlSWP
	}
	if m&modeTAS != 0 {
		aborts |= controlTAS
	}
	return append(b, pageControl, 10, flags,
		0x10, // QUEUE ALGORITHM MODIFIER: unrestricted reordering; QERR 00b
		access,
		aborts,
		0, 0, // obsolete
		0xff, 0xff, // BUSY TIMEOUT PERIOD: not limited
		0, 0) // no self-test
}

func parseControlPage(page []byte) modeBits {
	m := modeBits(0)
	if page[controlFlags]&controlDSense != 0 {
		m |= modeDescriptorSense
	}
	if page[controlAccess]&controlSWP != 0 {
		m |= modeSWP
	}
	if page[controlAborts]&controlTAS != 0 {
		m |= modeTAS
	}
	return m
}

// SPC "Control Extension mode page": asymmetric access is implicit (IALUAE),
// and sense data is as long as it is.
func appendControlExtension(b []byte, _ modeBits) []byte {
	b = append(b, modeSPF|pageControl, subpageControlExtension, 0, 0x1c, 0x01)
	return append(b, make([]byte, 0x1c-1)...)
}

// SPC "Informational Exceptions Control mode page": DEXCPT, there are none.
func appendExceptionsPage(b []byte, _ modeBits) []byte {
	return append(b, pageExceptions, 10, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// changeable appends the page with ones where a parameter can be changed.
func (p modePage) changeable(b []byte) []byte {
	start := len(b)
	b = p.body(b, 0)
	ones := p.body(nil, allModes)
	for i := p.header(); i < len(ones); i++ {
		b[start+i] ^= ones[i]
	}
	return b
}
