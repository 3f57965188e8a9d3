package config

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/containerdisk/containerdisk/auth"
)

type env map[string]string

func fromEnv(e env) (Config, error) { return FromEnv(envconfig.MapLookuper(e)) }

// mustRead is the configuration of an environment without mistakes.
func mustRead(t *testing.T, e env) Config {
	t.Helper()
	c, err := fromEnv(e)
	if err != nil {
		t.Fatalf("%v: %v", e, err)
	}
	return c
}

func TestNothingSet(t *testing.T) {
	c := mustRead(t, nil)
	c.chapFrom, c.CHAP.Algorithms = nil, nil
	want := Config{
		ImagePath:     "/disk",
		CopyMode:      CopyClone,
		ScratchDir:    "/var/tmp",
		Preallocate:   PreallocateNone,
		Populated:     PopulatedAuto,
		AccessMode:    WriteExclusive,
		DeviceType:    Disk,
		WWN:           "iqn.2017-01.io.kubevirt:wrapper",
		LUN:           1,
		ISCSIListen:   netip.MustParseAddrPort("127.0.0.1:3260"),
		StatusListen:  netip.MustParseAddrPort("127.0.0.1:9260"),
		HealthFile:    "/tmp/healthy",
		ShutdownGrace: 25 * time.Second,
		LogFormat:     LogAuto,
		LogLevel:      slog.LevelInfo,
	}
	if g, w := fmt.Sprintf("%+v", c), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}

func TestEverythingSet(t *testing.T) {
	c := mustRead(t, env{
		"IMAGE_PATH": "/image/disk", "MULTI_DISK": "false", "IMAGE_FORMAT": "raw", "COPY_MODE": "clone", "HYDRATE_RATE": "100M",
		"SCRATCH_DIR": "/scratch", "SCRATCH_DIRS": "fast=/storage/ssd, slow=/storage/rust", "USAGE_TYPE": "slow", "KEEP_SCRATCH": "false",
		"VOLUME_PATH": "/volume", "PREALLOCATE": "falloc", "POPULATED": "false", "DISK_SIZE": "10Gi",
		"ACCESS_MODE": "write-shared", "DEVICE_TYPE": "cdrom", "WWN": "iqn.2024-02.com.example:disk", "LUN": "0",
		"ISCSI_LISTEN": "[::]:3261", "CHAP_USERNAME": "vm", "CHAP_PASSWORD": "a secret of a vm",
		"CHAP_MUTUAL_USERNAME": "disk", "CHAP_MUTUAL_PASSWORD": "a secret of the disk", "CHAP_ALGORITHMS": "sha256, MD5",
		"INSECURE_NO_AUTH": "false", "STATUS_LISTEN": "0.0.0.0:8080", "HEALTH_FILE": "/run/../run/ok",
		"SHUTDOWN_GRACE": "1m30s", "LOG_FORMAT": "json", "LOG_LEVEL": "debug",
		"NBD_SOCKET": "/run/./d.sock", "NBD_LISTEN": "0.0.0.0:10809", "NBD_TLS_DIR": "/tls",
		"LISTEN_PID": strconv.Itoa(os.Getpid()), "LISTEN_FDS": "2",
	})
	c.chapFrom = nil
	got := fmt.Sprintf("%+v", c)
	want := "{ImagePath:/image/disk MultiDisk:false RawImage:true CopyMode:clone HydrateRate:100000000 DiskSize:10737418240 AccessMode:write-shared DeviceType:cdrom " +
		"ScratchDir:/storage/rust KeepScratch:false VolumePath:/volume Preallocate:falloc Populated:false " +
		"WWN:iqn.2024-02.com.example:disk LUN:0 ISCSIListen:[::]:3261 " +
		"CHAP:{Initiator:{Name:vm Secret:[redacted]} Target:{Name:disk Secret:[redacted]} Algorithms:[SHA-256 MD5]} " +
		"InsecureNoAuth:false NBDSocket:/run/d.sock NBDListen:0.0.0.0:10809 NBDTLSDir:/tls Sockets:2 StatusListen:0.0.0.0:8080 HealthFile:/run/ok ShutdownGrace:1m30s LogFormat:json LogLevel:DEBUG " +
		"chapFrom:map[]}"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s := string(c.CHAP.Initiator.Secret.Bytes()); s != "a secret of a vm" {
		t.Errorf("CHAP_PASSWORD: got %q", s)
	}
	if s := string(c.CHAP.Target.Secret.Bytes()); s != "a secret of the disk" {
		t.Errorf("CHAP_MUTUAL_PASSWORD: got %q", s)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("Validate: %v", err)
	}
}

var good = env{"CHAP_USERNAME": "vm", "CHAP_PASSWORD": "a secret of a vm"}

// with is good with some more or others.
func with(more env) env {
	e := env{}
	for _, m := range []env{good, more} {
		for k, v := range m {
			e[k] = v
		}
	}
	return e
}

func TestListen(t *testing.T) {
	tests := []struct {
		env  env
		want string
	}{
		{nil, "127.0.0.1:3260"},
		{good, "0.0.0.0:3260"},
		{env{"INSECURE_NO_AUTH": "true"}, "127.0.0.1:3260"},
		{env{"INSECURE_NO_AUTH": "true", "ISCSI_LISTEN": "0.0.0.0:1"}, "0.0.0.0:1"},
		{env{"ISCSI_LISTEN": "127.8.9.1:0"}, "127.8.9.1:0"},
		{env{"ISCSI_LISTEN": "[::1]:3260"}, "[::1]:3260"},
		{env{"ISCSI_LISTEN": "localhost:3260"}, "127.0.0.1:3260"},
		{env{"ISCSI_LISTEN": "[::ffff:127.0.0.1]:3260"}, "127.0.0.1:3260"},
		{with(env{"ISCSI_LISTEN": "[fe80::1%eth0]:3260"}), "[fe80::1%eth0]:3260"},
		{env{"PORT": "3261"}, "127.0.0.1:3261"},
		{with(env{"PORT": "3261"}), "0.0.0.0:3261"},
		{with(env{"PORT": "3261", "ISCSI_LISTEN": "10.0.0.1:3261"}), "10.0.0.1:3261"},
	}
	for _, tt := range tests {
		if got := mustRead(t, tt.env).ISCSIListen.String(); got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.env, got, tt.want)
		}
	}
}

// TestKeepScratch: a scratch directory that somebody chose is for the next
// start as well, unless it is said otherwise.
func TestKeepScratch(t *testing.T) {
	for _, tt := range []struct {
		env  env
		dir  string
		keep bool
	}{
		{nil, "/var/tmp", false},
		{env{"KEEP_SCRATCH": "true"}, "/var/tmp", true},
		{env{"SCRATCH_DIR": "/scratch"}, "/scratch", true},
		{env{"COPY_PATH": "/scratch"}, "/scratch", true},
		{env{"SCRATCH_DIR": "/scratch", "KEEP_SCRATCH": "false"}, "/scratch", false},
		{env{"SCRATCH_DIRS": "fast=/ssd"}, "/var/tmp", false},
		{env{"SCRATCH_DIR": "/scratch", "SCRATCH_DIRS": "fast=/ssd,slow=/rust"}, "/scratch", true},
		{env{"SCRATCH_DIR": "/scratch", "SCRATCH_DIRS": "fast=/ssd,slow=/rust", "USAGE_TYPE": "fast"}, "/ssd", true},
	} {
		if c := mustRead(t, tt.env); c.ScratchDir != tt.dir || c.KeepScratch != tt.keep {
			t.Errorf("%v: %s, kept: %v, want %s, %v", tt.env, c.ScratchDir, c.KeepScratch, tt.dir, tt.keep)
		}
	}
}

func TestOff(t *testing.T) {
	c := mustRead(t, env{"STATUS_LISTEN": "off", "HEALTH_FILE": "off"})
	if c.StatusListen.IsValid() || c.HealthFile != "" {
		t.Errorf("got %v and %q, want both off", c.StatusListen, c.HealthFile)
	}
}

// TestWithoutISCSI: NBD alone is enough, however it comes.
func TestWithoutISCSI(t *testing.T) {
	for _, e := range []env{
		{"NBD_SOCKET": "/run/d.sock"},
		{"NBD_LISTEN": "127.0.0.1:10809"},
		{"LISTEN_PID": strconv.Itoa(os.Getpid()), "LISTEN_FDS": "1"},
	} {
		e["ISCSI_LISTEN"] = "off"
		if c := mustRead(t, e); c.ISCSIListen.IsValid() {
			t.Errorf("%v: iSCSI on %v", e, c.ISCSIListen)
		}
	}
	if c := mustRead(t, env{"LISTEN_PID": "1", "LISTEN_FDS": "what"}); c.Sockets != 0 {
		t.Errorf("another process's sockets: %d", c.Sockets)
	}
}

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	name, secret := filepath.Join(dir, "name"), filepath.Join(dir, "secret")
	write(t, name, "vm\n")
	write(t, secret, "a secret of a vm\n")
	mounted := t.TempDir()
	write(t, filepath.Join(mounted, "node.session.auth.username"), "vm")
	write(t, filepath.Join(mounted, "node.session.auth.password"), "a secret of a vm")
	coded := base64.StdEncoding.EncodeToString

	for from, e := range map[string]env{
		"variables":       good,
		"files":           {"CHAP_USERNAME_FILE": name, "CHAP_PASSWORD_FILE": secret},
		"both":            {"CHAP_USERNAME": "vm", "CHAP_PASSWORD_FILE": secret},
		"mounted Secret":  {"CHAP_SECRET_DIR": mounted, "USERNAME": "somebody at a desktop"},
		"2017":            {"USERNAME": "vm", "PASSWORD": "a secret of a vm"},
		"2017, coded":     {"USERNAME_BASE64": coded([]byte("vm")), "PASSWORD_BASE64": coded([]byte("a secret of a vm"))},
		"2017, echo":      {"USERNAME": "vm", "PASSWORD_BASE64": coded([]byte("a secret of a vm\n"))},
		"2017 and today":  with(env{"USERNAME": "vm", "PASSWORD": "a secret of a vm"}),
		"file and former": {"CHAP_USERNAME": "vm", "CHAP_PASSWORD_FILE": secret, "PASSWORD": "a secret of a vm"},
		"desktop's name":  with(env{"USERNAME": "somebody at a desktop"}),
	} {
		c, err := fromEnv(e)
		if err != nil {
			t.Errorf("%s: %v", from, err)
			continue
		}
		if a := c.CHAP.Initiator; a.Name != "vm" || string(a.Secret.Bytes()) != "a secret of a vm" || !c.CHAP.Target.IsZero() {
			t.Errorf("%s: got %v with %q", from, a.Name, a.Secret.Bytes())
		}
		if len(c.CHAP.Algorithms) != 4 {
			t.Errorf("%s: algorithms %v, want all four", from, c.CHAP.Algorithms)
		}
	}
	if c := mustRead(t, env{"USERNAME": "somebody at a desktop"}); !c.CHAP.Initiator.IsZero() {
		t.Errorf("a desktop's USERNAME became %v", c.CHAP.Initiator)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestMistakes has one row for each: the environment, and what the message
// must say, line by line.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, "long")
	write(t, long, strings.Repeat("x", 300))
	short := t.TempDir()
	write(t, filepath.Join(short, "node.session.auth.username"), "vm")
	write(t, filepath.Join(short, "node.session.auth.password"), "hunter2")

	tests := []struct {
		name string
		env  env
		want []string
	}{
		{"empty", env{"WWN": ""}, []string{"WWN: set but empty; give it a value or unset it"}},
		{"empty secret", env{"CHAP_USERNAME": "vm", "CHAP_PASSWORD": ""}, []string{"CHAP_PASSWORD: set but empty"}},
		{"not a bool", env{"MULTI_DISK": "yep"}, []string{`MULTI_DISK="yep": want true or false`}},
		{"copy mode", env{"COPY_MODE": "copy"}, []string{`COPY_MODE="copy": unknown; want clone, copy-on-write, copy-on-read or none`}},
		{"copy mode of a volume", env{"COPY_MODE": "copy-on-read", "VOLUME_PATH": "/v"}, []string{`COPY_MODE="copy-on-read": a disk on a volume does without its image; want clone, or none for a volume that holds its disk already, or unset VOLUME_PATH`}},
		{"several disks on a volume", env{"MULTI_DISK": "true", "VOLUME_PATH": "/v"}, []string{"MULTI_DISK: a volume is for one disk; unset it or VOLUME_PATH"}},
		{"rate", env{"HYDRATE_RATE": "fast"}, []string{`HYDRATE_RATE="fast": want a number of bytes, or one with k, M, G, T, Ki, Mi, Gi or Ti, as in 20Gi`}},
		{"no rate", env{"HYDRATE_RATE": "0"}, []string{`HYDRATE_RATE="0": at no rate nothing would ever be copied; unset it for no limit, or set COPY_MODE=copy-on-write`}},
		{"rate of nothing", env{"HYDRATE_RATE": "1M", "COPY_MODE": "copy-on-write"}, []string{`HYDRATE_RATE: nothing is copied beside the guest with COPY_MODE="copy-on-write"; unset one of them`}},
		{"usage type", env{"USAGE_TYPE": "quick", "SCRATCH_DIRS": "slow=/storage/rust,fast=/storage/ssd,mem=/m"}, []string{`USAGE_TYPE="quick": unknown; SCRATCH_DIRS has fast, mem or slow`}},
		{"usage type of none", env{"USAGE_TYPE": "fast"}, []string{`USAGE_TYPE="fast": there are no usage types; set SCRATCH_DIRS as well`}},
		{"scratch directories", env{"USAGE_TYPE": "fast", "SCRATCH_DIRS": "/storage/ssd"}, []string{`SCRATCH_DIRS="/storage/ssd": want usage types and their directories, as in fast=/storage/ssd,slow=/storage/rust`}},
		{"scratch directory without a type", env{"SCRATCH_DIRS": "=/storage/ssd"}, []string{`SCRATCH_DIRS="=/storage/ssd": want usage types and their directories, as in fast=/storage/ssd,slow=/storage/rust`}},
		{"scratch directories twice", env{"SCRATCH_DIRS": "fast=/a,fast=/b"}, []string{`SCRATCH_DIRS="fast=/a,fast=/b": "fast" is there twice`}},
		{"preallocate", env{"PREALLOCATE": "full", "VOLUME_PATH": "/v"}, []string{`PREALLOCATE="full": unknown; want none or falloc`}},
		{"preallocate nothing", env{"PREALLOCATE": "falloc"}, []string{`PREALLOCATE="falloc": space is set aside on volumes only; set VOLUME_PATH as well, or unset it`}},
		{"populated", env{"POPULATED": "yes", "VOLUME_PATH": "/v"}, []string{`POPULATED="yes": unknown; want auto, true or false`}},
		{"populated nothing", env{"POPULATED": "true"}, []string{`POPULATED="true": is about the block device that VOLUME_PATH names; set that as well, or unset it`}},
		{"image format", env{"IMAGE_FORMAT": "qcow2"}, []string{`IMAGE_FORMAT="qcow2": unknown; want auto or raw`}},
		{"device type", env{"DEVICE_TYPE": "tape"}, []string{`DEVICE_TYPE="tape": unknown; want disk or cdrom`}},
		{"access mode", env{"ACCESS_MODE": "rw"}, []string{`ACCESS_MODE="rw": unknown; want write-exclusive, write-shared or read-shared`}},
		{"LUN", env{"LUN": "256"}, []string{`LUN="256": want a number from 0 to 255`}},
		{"negative LUN", env{"LUN": "-1"}, []string{`LUN="-1": want a number from 0 to 255`}},
		{"grace without unit", env{"SHUTDOWN_GRACE": "30"}, []string{`SHUTDOWN_GRACE="30": want a duration with its unit`}},
		{"negative grace", env{"SHUTDOWN_GRACE": "-1s"}, []string{`SHUTDOWN_GRACE="-1s": want a duration`}},
		{"log format", env{"LOG_FORMAT": "xml"}, []string{`LOG_FORMAT="xml": unknown; want auto, text or json`}},
		{"log level", env{"LOG_LEVEL": "INFO"}, []string{`LOG_LEVEL="INFO": unknown; want debug, info, warn or error`}},
		{"health file", env{"HEALTH_FILE": "healthy"}, []string{`HEALTH_FILE="healthy": want an absolute path, or off`}},
		{"size", env{"DISK_SIZE": "big"}, []string{`DISK_SIZE="big": want a number of bytes`}},

		{"no port", env{"ISCSI_LISTEN": "127.0.0.1"}, []string{`ISCSI_LISTEN="127.0.0.1": want an address and a port`}},
		{"no address", env{"ISCSI_LISTEN": ":3260"}, []string{`ISCSI_LISTEN=":3260": want an address and a port`}},
		{"host name", env{"ISCSI_LISTEN": "example.com:3260"}, []string{`"example.com" is not an IP address`}},
		{"port too large", env{"ISCSI_LISTEN": "127.0.0.1:65536"}, []string{`port "65536" is not a number`}},
		{"status", env{"STATUS_LISTEN": "on"}, []string{`STATUS_LISTEN="on": want an address and a port`, ", or off"}},
		{"former port", env{"PORT": "iscsi"}, []string{`PORT="iscsi": port "iscsi" is not a number`}},
		{"two ports", with(env{"PORT": "3261", "ISCSI_LISTEN": "0.0.0.0:3260"}), []string{`PORT="3261": ISCSI_LISTEN is set as well`}},
		{"two scratches", env{"COPY_PATH": "/a", "SCRATCH_DIR": "/b"}, []string{`COPY_PATH="/a": SCRATCH_DIR is set as well`}},
		{"one port for both", env{"STATUS_LISTEN": "127.0.0.1:3260"}, []string{"STATUS_LISTEN", "ISCSI_LISTEN"}},
		{"open without CHAP", env{"ISCSI_LISTEN": "0.0.0.0:3260"},
			[]string{`ISCSI_LISTEN="0.0.0.0:3260": other machines`, "set CHAP_USERNAME and CHAP_PASSWORD", "127.0.0.1", "INSECURE_NO_AUTH=true"}},
		{"open without CHAP, IPv6", env{"ISCSI_LISTEN": "[::]:3260"}, []string{`ISCSI_LISTEN="[::]:3260": other machines`}},
		{"open, and no is meant", env{"ISCSI_LISTEN": "10.1.2.3:3260", "INSECURE_NO_AUTH": "false"}, []string{`ISCSI_LISTEN="10.1.2.3:3260": other machines`}},
		{"size of several", env{"MULTI_DISK": "1", "DISK_SIZE": "10Gi"}, []string{"DISK_SIZE: cannot be for several disks; unset it or MULTI_DISK"}},

		{"name alone", env{"CHAP_USERNAME": "vm"}, []string{"CHAP_PASSWORD: missing", "set CHAP_PASSWORD, CHAP_PASSWORD_FILE or CHAP_SECRET_DIR"}},
		{"name alone, open", env{"CHAP_USERNAME": "vm", "ISCSI_LISTEN": "0.0.0.0:3260"}, []string{"CHAP_PASSWORD: missing"}},
		{"secret alone", env{"CHAP_PASSWORD": "a secret of a vm"}, []string{"CHAP_USERNAME: missing", "set CHAP_USERNAME"}},
		{"former secret alone", env{"PASSWORD": "a secret of a vm"}, []string{"CHAP_USERNAME: missing"}},
		{"mutual name alone", with(env{"CHAP_MUTUAL_USERNAME": "disk"}), []string{"CHAP_MUTUAL_PASSWORD: missing"}},
		{"mutual alone", env{"CHAP_MUTUAL_USERNAME": "disk", "CHAP_MUTUAL_PASSWORD": "a secret of the disk"}, []string{"CHAP_USERNAME: missing"}},
		{"short secret", with(env{"CHAP_PASSWORD": "hunter2"}), []string{"CHAP_PASSWORD: has 7 bytes, needs at least 12"}},
		{"short former secret", env{"USERNAME": "vm", "PASSWORD": "hunter2"}, []string{"PASSWORD: has 7 bytes, needs at least 12"}},
		{"equal secrets", with(env{"CHAP_MUTUAL_USERNAME": "disk", "CHAP_MUTUAL_PASSWORD": "a secret of a vm"}),
			[]string{"CHAP_MUTUAL_PASSWORD: is the same as the initiator's"}},
		{"newline", with(env{"CHAP_PASSWORD": "a secret of a vm\n"}), []string{"CHAP_PASSWORD: ends in a newline"}},
		{"control character in name", with(env{"CHAP_USERNAME": "v\tm"}), []string{`CHAP_USERNAME: "v\tm" has a control character`}},
		{"algorithm", with(env{"CHAP_ALGORITHMS": "md5,sha512"}), []string{`CHAP_ALGORITHMS="md5,sha512": unknown CHAP algorithm "sha512"`}},
		{"algorithm twice", with(env{"CHAP_ALGORITHMS": "md5,MD5"}), []string{"CHAP_ALGORITHMS: MD5 is named twice"}},
		{"empty algorithm", with(env{"CHAP_ALGORITHMS": "md5,"}), []string{`unknown CHAP algorithm ""`}},

		{"secret and its file", with(env{"CHAP_PASSWORD_FILE": long}), []string{"CHAP_PASSWORD_FILE=", "more than 255 bytes", "CHAP_PASSWORD is set as well"}},
		{"missing file", env{"CHAP_USERNAME": "vm", "CHAP_PASSWORD_FILE": dir + "/none"}, []string{"CHAP_PASSWORD_FILE=", "no such file"}},
		{"missing file, open", env{"CHAP_USERNAME": "vm", "CHAP_PASSWORD_FILE": dir + "/none", "ISCSI_LISTEN": "0.0.0.0:3260"},
			[]string{"CHAP_PASSWORD_FILE=", "no such file"}},
		{"both files missing, open", env{"CHAP_USERNAME_FILE": dir + "/none", "CHAP_PASSWORD_FILE": dir + "/none", "ISCSI_LISTEN": "0.0.0.0:3260"},
			[]string{"CHAP_USERNAME_FILE=", "\nCHAP_PASSWORD_FILE="}},
		{"former secret differs", with(env{"PASSWORD": "another of the vm"}), []string{"PASSWORD: CHAP_PASSWORD is set as well"}},
		{"former name differs", with(env{"USERNAME": "mv", "PASSWORD": "a secret of a vm"}), []string{`USERNAME="mv": CHAP_USERNAME is set as well`}},
		{"former secrets differ", env{"USERNAME": "vm", "PASSWORD": "a secret of a vm", "PASSWORD_BASE64": "YW5vdGhlciBvZiBhIHZt"},
			[]string{"PASSWORD_BASE64: PASSWORD is set as well"}},
		{"not base64", env{"USERNAME": "vm", "PASSWORD_BASE64": "hunter2!hunter2!"}, []string{"PASSWORD_BASE64: not base64"}},
		{"base64 unpadded", env{"USERNAME": "vm", "PASSWORD_BASE64": "YSBzZWNyZXQgb2YgYSB2bQ"}, []string{"PASSWORD_BASE64: not base64"}},
		{"base64 with stray bits", env{"USERNAME": "vm", "PASSWORD_BASE64": "YSBzZWNyZXQgb2YgYSB2bR=="}, []string{"PASSWORD_BASE64: not base64"}},
		{"base64 with line break", env{"USERNAME": "vm", "PASSWORD_BASE64": "YSBzZWNy\nZXQgb2YgYSB2bQ=="}, []string{"PASSWORD_BASE64: not base64"}},
		{"Secret and variable", with(env{"CHAP_SECRET_DIR": short}), []string{"CHAP_SECRET_DIR=", "CHAP_USERNAME, CHAP_PASSWORD are set as well"}},
		{"Secret missing", env{"CHAP_SECRET_DIR": dir}, []string{"CHAP_SECRET_DIR=", "none of the keys", "node.session.auth.password"}},
		{"Secret short", env{"CHAP_SECRET_DIR": short}, []string{"CHAP_SECRET_DIR: initiator secret: has 7 bytes"}},

		{"NBD for everybody", env{"NBD_LISTEN": "0.0.0.0:10809"}, []string{`NBD_LISTEN="0.0.0.0:10809": other machines`, "set NBD_TLS_DIR"}},
		{"NBD for everybody, for all that", env{"NBD_LISTEN": "[::]:10809", "INSECURE_NO_AUTH": "true"}, []string{`NBD_LISTEN="[::]:10809": other machines`}},
		{"NBD without a port", env{"NBD_LISTEN": "127.0.0.1"}, []string{`NBD_LISTEN="127.0.0.1": want an address and a port`}},
		{"NBD socket, empty", env{"NBD_SOCKET": ""}, []string{"NBD_SOCKET: set but empty"}},
		{"NBD socket, relative", env{"NBD_SOCKET": "d.sock"}, []string{`NBD_SOCKET="d.sock": want an absolute path`}},
		{"NBD socket, long", env{"NBD_SOCKET": "/" + strings.Repeat("s", 107)}, []string{"NBD_SOCKET=", "a path of 108 bytes"}},
		{"certificates for nothing", env{"NBD_TLS_DIR": "/tls"}, []string{`NBD_TLS_DIR="/tls": NBD is not served`}},
		{"no wire", env{"ISCSI_LISTEN": "off"}, []string{"nothing is left to serve the disk on"}},
		{"two wires, one port", env{"NBD_LISTEN": "127.0.0.1:3260"}, []string{`NBD_LISTEN="127.0.0.1:3260": the port is that of ISCSI_LISTEN`}},
		{"status and NBD, one port", env{"NBD_LISTEN": "127.0.0.1:9260"}, []string{`STATUS_LISTEN="127.0.0.1:9260": the port is that of NBD_LISTEN`}},
		{"sockets", env{"LISTEN_PID": strconv.Itoa(os.Getpid()), "LISTEN_FDS": "many"}, []string{`LISTEN_FDS="many": want a number`}},
		{"volume", env{"VOLUME_PATH": ""}, []string{`VOLUME_PATH: set but empty; give it a value or unset it`}},
	}
	for _, tt := range tests {
		c, err := fromEnv(tt.env)
		if err == nil {
			t.Errorf("%s: no error", tt.name)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains("\n"+err.Error(), w) {
				t.Errorf("%s: got %q, want %q in it", tt.name, err, w)
			}
		}
		if c.WWN != "" {
			t.Errorf("%s: a configuration came with the error", tt.name)
		}
		for _, s := range []string{"hunter2", "a secret of", "another of", "xxx"} {
			if strings.Contains(err.Error(), s) {
				t.Errorf("%s: a secret is in the message: %s", tt.name, err)
			}
		}
	}
}

// TestOneMistakeIsToldOnce: what follows from a mistake is not another one.
func TestOneMistakeIsToldOnce(t *testing.T) {
	for _, e := range []env{
		{"CHAP_USERNAME": "vm", "CHAP_PASSWORD": ""},
		{"CHAP_USERNAME": "vm", "CHAP_PASSWORD_FILE": "/none", "ISCSI_LISTEN": "0.0.0.0:3260"},
		{"CHAP_SECRET_DIR": "/none", "ISCSI_LISTEN": "0.0.0.0:3260"},
		{"USERNAME": "vm", "PASSWORD_BASE64": "?", "ISCSI_LISTEN": "0.0.0.0:3260"},
		{"CHAP_USERNAME": "vm", "ISCSI_LISTEN": "0.0.0.0:3260"},
		{"INSECURE_NO_AUTH": "maybe", "ISCSI_LISTEN": "0.0.0.0:3260"},
		{"ISCSI_LISTEN": "?", "PORT": "3261"},
		{"MULTI_DISK": "?", "DISK_SIZE": "1Gi"},
	} {
		if _, err := fromEnv(e); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: got %v, want one line", e, err)
		}
	}
}

func TestAllMistakesTogether(t *testing.T) {
	_, err := fromEnv(env{
		"CHAP_USERNAME": "vm", "CHAP_PASSWORD": "hunter2", "WWN": "wrapper", "LUN": "one", "LOG_LEVEL": "loud",
		"STATUS_LISTEN": "127.0.0.1:3260", "ISCSI_LISTEN": "127.0.0.1:3260", "COPY_MODE": "no",
	})
	if err == nil {
		t.Fatal("no error")
	}
	var names []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		names = append(names, line[:strings.IndexAny(line, "=:")])
	}
	slices.Sort(names)
	want := []string{"CHAP_PASSWORD", "COPY_MODE", "LOG_LEVEL", "LUN", "STATUS_LISTEN", "WWN"}
	if !slices.Equal(names, want) {
		t.Errorf("got lines about %q, want %q:\n%v", names, want, err)
	}
}

func TestValidateOfWhatWasMadeByHand(t *testing.T) {
	c := Config{
		ISCSIListen: netip.MustParseAddrPort("0.0.0.0:3260"),
		CHAP:        auth.CHAP{Target: auth.Account{Name: "disk"}},
	}
	err := c.Validate()
	for _, want := range []string{"CHAP_USERNAME: missing", "CHAP_MUTUAL_PASSWORD: missing", "ISCSI_LISTEN="} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}
