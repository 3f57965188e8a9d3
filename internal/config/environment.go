package config

import (
	"reflect"
)

// environment is every variable there is, as found. The tags: env is the name;
// default what is parsed when it is not set; otherwise says in words what holds
// then; alias is today's name of a former variable; help is for people, with
// code in single quotes.
type environment struct {
	Image  imageEnv  `group:"The image"`
	Disk   diskEnv   `group:"The disk"`
	Store  storeEnv  `group:"Where the disk is kept"`
	ISCSI  iscsiEnv  `group:"iSCSI"`
	CHAP   chapEnv   `group:"Who may log in"`
	NBD    nbdEnv    `group:"NBD"`
	Server serverEnv `group:"The server"`
	Passed passedEnv `group:"Socket activation"`
	Former formerEnv `group:"Names of 2017"`
}

type imageEnv struct {
	ImagePath   variable `env:"IMAGE_PATH" default:"/disk" help:"the image file, or the directory to find it in; its content tells the format, not its name"`
	MultiDisk   variable `env:"MULTI_DISK" default:"false" help:"'true': several images are served as several disks, in the order of their names; otherwise they are an error"`
	ImageFormat variable `env:"IMAGE_FORMAT" default:"auto" help:"'auto': as the content tells; 'raw': a raw disk whatever it looks like, for one that a guest has written to"`
}

type diskEnv struct {
	CopyMode    variable `env:"COPY_MODE" default:"clone" help:"'clone': a writable disk that is copied from the image while it is served; 'copy-on-write': it takes only what is written; 'copy-on-read': and what is read; 'none': the raw image itself is served, and written"`
	HydrateRate variable `env:"HYDRATE_RATE" otherwise:"as fast as the guest leaves room" help:"how much 'clone' copies at most, in bytes a second, with the units of 'DISK_SIZE'"`
	DiskSize    variable `env:"DISK_SIZE" otherwise:"as the image says" help:"size of the disk: bytes, or a number with 'k', 'M', 'G', 'T' (powers of 1000) or 'Ki', 'Mi', 'Gi', 'Ti' (of 1024) as in Kubernetes; larger than the image grows the disk, smaller is refused"`
	DeviceType  variable `env:"DEVICE_TYPE" default:"disk" help:"'disk'; 'cdrom': a CD/DVD drive with the image, mostly an ISO, as its disc, for iSCSI. An ISO image is write-protected either way"`
	AccessMode  variable `env:"ACCESS_MODE" default:"write-exclusive" help:"'write-exclusive': one client at a time; 'write-shared': several that write, as in a live migration; 'read-shared': any number, write-protected"`
}

type storeEnv struct {
	ScratchDir  variable `env:"SCRATCH_DIR" default:"/var/tmp" help:"directory for disks that are not on a volume; the container image sets '/scratch', where a volume belongs"`
	ScratchDirs variable `env:"SCRATCH_DIRS" help:"directories by usage type, as in 'fast=/storage/ssd,slow=/storage/rust'"`
	UsageType   variable `env:"USAGE_TYPE" help:"which of 'SCRATCH_DIRS' to use, instead of 'SCRATCH_DIR'"`
	KeepScratch variable `env:"KEEP_SCRATCH" otherwise:"true, but in /var/tmp false" help:"'true': after an orderly end the disk in the scratch directory stays for the next start; 'false': it is removed. After any other end it stays"`
	VolumePath  variable `env:"VOLUME_PATH" help:"mounted PersistentVolume or block device to keep the disk on: the first start fills it from the image, later ones serve it as it is"`
	Preallocate variable `env:"PREALLOCATE" default:"none" help:"'falloc': the volume's file system sets aside the space of the whole disk at once"`
	Populated   variable `env:"POPULATED" default:"auto" help:"for a block device as 'VOLUME_PATH' of which the scratch directory knows nothing: 'true': it holds the disk; 'false': what is on it may be overwritten; 'auto': it is filled if it is blank, and else refused"`
}

type iscsiEnv struct {
	WWN    variable `env:"WWN" default:"iqn.2017-01.io.kubevirt:wrapper" help:"the target's iSCSI name: 'iqn.', 'eui.' or 'naa.' form, lower case, at most 223 bytes"`
	LUN    variable `env:"LUN" default:"1" help:"number of the first disk, 0 to 255"`
	Listen variable `env:"ISCSI_LISTEN" otherwise:"127.0.0.1:3260; with CHAP 0.0.0.0:3260" help:"address and port for iSCSI; '[::]:3260' is IPv4 and IPv6; port 0 takes a free one; other than loopback only with CHAP; 'off': no iSCSI"`
}

type chapEnv struct {
	Username           variable `env:"CHAP_USERNAME" help:"name that initiators log in with; none: no authentication, and loopback only"`
	UsernameFile       variable `env:"CHAP_USERNAME_FILE" help:"file with that name; one newline at the end is ignored in all these files"`
	Password           variable `env:"CHAP_PASSWORD" secret:"true" help:"secret that initiators log in with, 12 to 255 bytes (Windows takes 12 to 16)"`
	PasswordFile       variable `env:"CHAP_PASSWORD_FILE" help:"file with that secret"`
	MutualUsername     variable `env:"CHAP_MUTUAL_USERNAME" help:"name with which the target proves itself to initiators that ask"`
	MutualUsernameFile variable `env:"CHAP_MUTUAL_USERNAME_FILE" help:"file with that name"`
	MutualPassword     variable `env:"CHAP_MUTUAL_PASSWORD" secret:"true" help:"the target's secret, another than 'CHAP_PASSWORD'"`
	MutualPasswordFile variable `env:"CHAP_MUTUAL_PASSWORD_FILE" help:"file with that secret"`
	SecretDir          variable `env:"CHAP_SECRET_DIR" help:"directory where a Secret of type 'kubernetes.io/iscsi-chap' is mounted; instead of all the above"`
	Algorithms         variable `env:"CHAP_ALGORITHMS" default:"sha3-256,sha256,sha1,md5" help:"hashes allowed, separated by commas; an initiator gets the first of its own list that is among them; Windows and older Linux know only 'md5'"`
	InsecureNoAuth     variable `env:"INSECURE_NO_AUTH" default:"false" help:"'true': listen on any address without CHAP; whoever reaches the port can read and write the disk"`
}

type nbdEnv struct {
	Socket variable `env:"NBD_SOCKET" help:"path of a Unix socket for NBD, for processes of the same user or group; a stale one is replaced"`
	Listen variable `env:"NBD_LISTEN" help:"address and port for NBD over TCP (the usual port is 10809); other than loopback only with 'NBD_TLS_DIR'"`
	TLSDir variable `env:"NBD_TLS_DIR" help:"directory with 'ca-cert.pem', 'server-cert.pem' and 'server-key.pem'; NBD over TCP is then only for clients with a certificate of that authority, on the Unix socket they may use it; changed files count from the next connection on"`
}

type serverEnv struct {
	StatusListen  variable `env:"STATUS_LISTEN" default:"127.0.0.1:9260" help:"address and port for '/healthz', '/readyz', '/status' and '/metrics', or 'off'; the kubelet's probes need '0.0.0.0' here"`
	HealthFile    variable `env:"HEALTH_FILE" default:"/tmp/healthy" help:"file that exists while the disks are served, if its directory is writable, or 'off'"`
	ShutdownGrace variable `env:"SHUTDOWN_GRACE" default:"25s" help:"after SIGTERM, how long attached clients are served on before the server flushes and leaves; below the pod's 'terminationGracePeriodSeconds'"`
	LogFormat     variable `env:"LOG_FORMAT" default:"auto" help:"'text', 'json', or 'auto': text on a terminal, else JSON"`
	LogLevel      variable `env:"LOG_LEVEL" default:"info" help:"'debug', 'info', 'warn' or 'error'"`
}

// passedEnv is what systemd and others tell about sockets that they hand over.
type passedEnv struct {
	ListenPID variable `env:"LISTEN_PID" passed:"true" help:"process that the sockets are for; set by systemd, 'nbdinfo [ … ]' and others"`
	ListenFDs variable `env:"LISTEN_FDS" passed:"true" help:"how many listening sockets there are, from descriptor 3 on; NBD is served on them"`
}

type formerEnv struct {
	Port           variable `env:"PORT" alias:"ISCSI_LISTEN" help:"the port only"`
	Username       variable `env:"USERNAME" alias:"CHAP_USERNAME" help:"looked at only beside 'PASSWORD' or 'PASSWORD_BASE64': desktops set it for their own ends"`
	UsernameBase64 variable `env:"USERNAME_BASE64" alias:"CHAP_USERNAME" help:"in base64"`
	Password       variable `env:"PASSWORD" alias:"CHAP_PASSWORD" secret:"true"`
	PasswordBase64 variable `env:"PASSWORD_BASE64" alias:"CHAP_PASSWORD" secret:"true" help:"in base64; one newline at the end is ignored"`
	CopyPath       variable `env:"COPY_PATH" alias:"SCRATCH_DIR"`
}

// variable is one variable as found. Its text is never printed by accident:
// the fields are not exported, and a secret's text goes to no error.
type variable struct {
	name     string
	fallback string // parsed when the variable is not set
	secret   bool

	set  bool
	text string
}

// EnvDecode takes the text as it is: envconfig stops at the first error, and
// we want them all.
func (v *variable) EnvDecode(text string) error {
	v.set, v.text = true, text
	return nil
}

// newEnvironment returns an environment in which nothing is set yet.
func newEnvironment() *environment {
	env := new(environment)
	for _, f := range env.fields() {
		*f.v = variable{name: f.tag.Get("env"), fallback: f.tag.Get("default"), secret: f.tag.Get("secret") != ""}
	}
	return env
}

// field is one variable with what its tags say.
type field struct {
	v     *variable
	group string
	tag   reflect.StructTag
}

// fields returns all variables of env in their order.
func (e *environment) fields() []field {
	var all []field
	groups := reflect.ValueOf(e).Elem()
	for i := range groups.NumField() {
		group, members := groups.Type().Field(i), groups.Field(i)
		for j := range members.NumField() {
			all = append(all, field{
				v:     members.Field(j).Addr().Interface().(*variable),
				group: group.Tag.Get("group"),
				tag:   members.Type().Field(j).Tag,
			})
		}
	}
	return all
}

// Variable describes one environment variable.
type Variable struct {
	Group   string // heading under which it stands
	Name    string
	Default string // what holds when it is not set, in words where it depends; "" for nothing
	Help    string // one sentence without its full stop, code in single quotes
	Secret  bool   // its value is not to be shown
	Alias   string // of a former name: the name to use now
	Passed  bool   // set by programs that start this one, and not by people
}

// Variables returns every variable that FromEnv reads, in the order in which
// people should meet them.
func Variables() []Variable {
	var all []Variable
	for _, f := range new(environment).fields() {
		all = append(all, Variable{
			Group:   f.group,
			Name:    f.tag.Get("env"),
			Default: f.tag.Get("default") + f.tag.Get("otherwise"), // a variable has one of them
			Help:    f.tag.Get("help"),
			Secret:  f.tag.Get("secret") != "",
			Alias:   f.tag.Get("alias"),
			Passed:  f.tag.Get("passed") != "",
		})
	}
	return all
}
