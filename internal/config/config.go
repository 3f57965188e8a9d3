// Package config reads the program's settings from the environment: one
// struct, read once, strictly. A variable that is set but unusable stops the
// start; all mistakes are reported together, each with the variable's name and
// the way out. No other package knows the name of a variable.
//
// The struct environment is the one list of what there is to set: FromEnv,
// Variables, `serve --help` and docs/CONFIG.md all come from it.
package config

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/containerdisk/containerdisk/auth"
)

// Config is what the operator asked for, parsed.
type Config struct {
	ImagePath string // the image, or the directory to look for it
	MultiDisk bool   // several images are several disks, and no mistake
	RawImage  bool   // the image is a raw disk, whatever it looks like

	CopyMode    CopyMode
	HydrateRate int64 // bytes a second; 0: not limited
	DiskSize    int64 // bytes; 0: as the image says
	AccessMode  AccessMode
	DeviceType  DeviceType

	ScratchDir  string // where disks go that are not on a volume
	KeepScratch bool   // also after an orderly end
	VolumePath  string // where the disk is kept; "": in the scratch directory
	Preallocate Preallocate
	Populated   Populated // whether a device that we know nothing of holds the disk

	WWN            string         // the target's iSCSI name
	LUN            uint64         // of the first disk
	ISCSIListen    netip.AddrPort // not valid: off
	CHAP           auth.CHAP      // not Enabled: anybody who can connect may log in
	InsecureNoAuth bool           // no CHAP is meant, on whatever address

	NBDSocket string         // path of a Unix socket; "": none
	NBDListen netip.AddrPort // not valid: off
	NBDTLSDir string         // "": no TLS
	Sockets   int            // handed over by whoever started us, for NBD

	StatusListen  netip.AddrPort // not valid: off
	HealthFile    string         // "": off
	ShutdownGrace time.Duration
	LogFormat     LogFormat
	LogLevel      slog.Level

	// chapFrom names the variables that the parts of CHAP came from.
	chapFrom map[auth.Field]string
}

// CopyMode is how a writable disk is made of the image.
type CopyMode string

const (
	CopyNone  CopyMode = "none"          // the image is the disk
	CopyWrite CopyMode = "copy-on-write" // what is written is kept
	CopyRead  CopyMode = "copy-on-read"  // what is written or read is kept
	CopyClone CopyMode = "clone"         // all of the image is copied in time
)

// DeviceType is what a disk looks like to initiators.
type DeviceType string

const (
	Disk  DeviceType = "disk"
	CDROM DeviceType = "cdrom" // a CD/DVD drive with a disc in it
)

// ImageFormat is how the format of an image is found out.
type ImageFormat string

const (
	FormatAuto ImageFormat = "auto"
	FormatRaw  ImageFormat = "raw"
)

// Preallocate is what is done about space on a volume that is not written yet.
type Preallocate string

const (
	PreallocateNone   Preallocate = "none"
	PreallocateFalloc Preallocate = "falloc"
)

// Populated is what the operator knows about a block device.
type Populated string

const (
	PopulatedAuto Populated = "auto"
	PopulatedYes  Populated = "true"
	PopulatedNo   Populated = "false"
)

// AccessMode is how many clients a disk has at a time.
type AccessMode string

const (
	WriteExclusive AccessMode = "write-exclusive" // one
	WriteShared    AccessMode = "write-shared"    // several that write
	ReadShared     AccessMode = "read-shared"     // any number, none of which writes
)

// LogFormat is the form of the log's lines.
type LogFormat string

const (
	LogAuto LogFormat = "auto" // LogText on a terminal, else LogJSON
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// FromEnv reads the configuration from lookup, which is envconfig.OsLookuper
// with the command line's flags laid over it. The error is all mistakes
// joined.
func FromEnv(lookup envconfig.Lookuper) (Config, error) {
	env := newEnvironment()
	err := envconfig.ProcessWith(context.Background(), &envconfig.Config{Target: env, Lookuper: lookup})
	if err != nil {
		return Config{}, err
	}
	r := newReader()
	c := read(r, env)
	errs := r.errs
	for _, p := range c.problems() {
		if !r.bad(p.about) {
			errs = append(errs, p)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// read parses every variable of env.
func read(r *reader, env *environment) Config {
	var c Config
	parse(r, env.Image.ImagePath, &c.ImagePath, asIs)
	parse(r, env.Image.MultiDisk, &c.MultiDisk, parseBool)

	var format ImageFormat
	parse(r, env.Image.ImageFormat, &format, oneOf("unknown", FormatAuto, FormatRaw))
	c.RawImage = format == FormatRaw

	parse(r, env.Disk.CopyMode, &c.CopyMode, oneOf("unknown", CopyClone, CopyWrite, CopyRead, CopyNone))
	parse(r, env.Disk.HydrateRate, &c.HydrateRate, parseRate)
	parse(r, env.Disk.DiskSize, &c.DiskSize, parseSize)
	parse(r, env.Disk.DeviceType, &c.DeviceType, oneOf("unknown", Disk, CDROM))
	parse(r, env.Disk.AccessMode, &c.AccessMode, oneOf("unknown", WriteExclusive, WriteShared, ReadShared))
	readStore(r, env, &c)

	parse(r, env.ISCSI.WWN, &c.WWN, parseISCSIName)
	parse(r, env.ISCSI.LUN, &c.LUN, parseLUN)
	readCHAP(r, env, &c)
	parse(r, env.CHAP.InsecureNoAuth, &c.InsecureNoAuth, parseBool)
	readListen(r, env, &c)

	parse(r, env.NBD.Socket, &c.NBDSocket, parseSocket)
	parse(r, env.NBD.Listen, &c.NBDListen, parseAddrPort)
	parse(r, env.NBD.TLSDir, &c.NBDTLSDir, asIs)
	readSockets(r, env, &c)

	parse(r, env.Server.StatusListen, &c.StatusListen, orOff(parseAddrPort))
	parse(r, env.Server.HealthFile, &c.HealthFile, orOff(parseAbsolute))
	parse(r, env.Server.ShutdownGrace, &c.ShutdownGrace, parseGrace)
	parse(r, env.Server.LogFormat, &c.LogFormat, oneOf("unknown", LogAuto, LogText, LogJSON))
	parse(r, env.Server.LogLevel, &c.LogLevel, parseLevel)
	return c
}

// iscsiPort is the port that IANA gave to iSCSI targets for their users'
// choice; initiators try it first.
const iscsiPort = 3260

// readListen needs to know whether there is CHAP: without it the default is an
// address that other machines cannot reach.
func readListen(r *reader, env *environment, c *Config) {
	c.ISCSIListen = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), iscsiPort)
	if c.CHAP.Enabled() {
		c.ISCSIListen = netip.AddrPortFrom(netip.IPv4Unspecified(), iscsiPort)
	}
	addr := c.ISCSIListen.Addr()
	parse(r, env.ISCSI.Listen, &c.ISCSIListen, orOff(parseAddrPort))
	if env.ISCSI.Listen.set {
		addr = c.ISCSIListen.Addr() // PORT says nothing about the address
	}
	alias(r, env.Former.Port, env.ISCSI.Listen, &c.ISCSIListen, func(s string) (netip.AddrPort, error) {
		port, err := parsePort(s)
		return netip.AddrPortFrom(addr, port), err
	})
}

// readSockets finds out how many listening sockets we were given, as
// sd_listen_fds(3) does: those meant for another process do not concern us.
func readSockets(r *reader, env *environment, c *Config) {
	var pid int
	parse(r, env.Passed.ListenPID, &pid, strconv.Atoi)
	if pid == os.Getpid() {
		parse(r, env.Passed.ListenFDs, &c.Sockets, parseCount)
	}
}
