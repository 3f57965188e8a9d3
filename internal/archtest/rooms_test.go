package archtest

// The import table: docs/adr/0001. A package that is not in it fails the test,
// so that a new room is a decision and not an accident.

// room is what a package of the module may import.
type room struct {
	// ours are the packages of the module it may import. Those of its own
	// level are missing on purpose: siblings are joined by cmd.
	ours []string
	// never are packages that must not be in it, however they come in; a
	// trailing "!" forbids only the import by the room itself.
	never []string
}

// command is the room that joins the others: it may import every room but the
// tests' helpers.
const command = "cmd/containerdisk"

var rooms = map[string]room{
	"blockdev":    {never: []string{"net"}},
	"internal/be": {never: []string{"net", "os!"}},
	"internal/le": {never: []string{"net", "os!"}},
	"auth":        {never: []string{"net"}},

	// pages is what the format packages share: tables read in bounded memory.
	"imageconv/pages": {ours: []string{"blockdev"}, never: []string{"net", "os!"}},
	// inflate is another: deflate from memory to memory.
	"imageconv/inflate": {never: []string{"net", "os!"}},
	// runs is the third: a disk made of a lookup.
	"imageconv/runs": {ours: []string{"blockdev", "imageconv/pages"}, never: []string{"net", "os!"}},
	// cache is the fourth: what is costly to make.
	"imageconv/cache": {never: []string{"net", "os!"}},
	"imageconv/qcow2": {
		ours:  []string{"blockdev", "imageconv/cache", "imageconv/inflate", "internal/be"},
		never: []string{"net", "os!"},
	},
	"imageconv/packed": {never: []string{"net", "os!"}},
	"imageconv/vhd": {
		ours:  []string{"blockdev", "imageconv/pages", "imageconv/runs", "internal/be"},
		never: []string{"net", "os!"},
	},
	"imageconv/vdi": {
		ours:  []string{"blockdev", "imageconv/pages", "imageconv/runs", "internal/le"},
		never: []string{"net", "os!"},
	},
	"imageconv/vhdx": {
		ours:  []string{"blockdev", "imageconv/pages", "imageconv/runs", "internal/le"},
		never: []string{"net", "os!"},
	},
	"imageconv/qed": {
		ours:  []string{"blockdev", "imageconv/pages", "imageconv/runs", "internal/le"},
		never: []string{"net", "os!"},
	},
	"imageconv/vmdk": {
		ours:  []string{"blockdev", "imageconv/cache", "imageconv/inflate", "imageconv/pages", "imageconv/runs", "internal/le"},
		never: []string{"net", "os!"},
	},
	"imageconv": {
		ours:  []string{"blockdev", "imageconv/packed", "imageconv/qcow2", "imageconv/qed", "imageconv/vdi", "imageconv/vhd", "imageconv/vhdx", "imageconv/vmdk", "internal/be"},
		never: []string{"net"},
	},
	// The overlay is given its base; which image that is it does not know.
	"overlay": {ours: []string{"blockdev", "internal/be"}, never: []string{"net", "os!"}},
	"target/scsi": {
		ours:  []string{"blockdev", "internal/be"},
		never: []string{"net", "os!"},
	},
	"target/wire": {never: []string{"os!"}}, // the mechanism of all protocols, which knows none
	// iscsi sees LUNs and not disks.
	"target/iscsi": {ours: []string{"auth", "internal/be", "target/scsi", "target/wire"}},
	"target/nbd":   {ours: []string{"blockdev", "internal/be", "target/wire"}},
	"target":       {ours: []string{"auth", "blockdev", "target/iscsi", "target/nbd", "target/scsi"}},

	"internal/config":    {ours: []string{"auth", "blockdev"}},
	"internal/discovery": {ours: []string{"imageconv"}, never: []string{"net"}},
	"internal/volume":    {ours: []string{"blockdev"}, never: []string{"net"}},
	"internal/status":    {},
	"internal/archtest":  {},

	// Helpers of tests, and tests that are packages of their own.
	"blockdev/blockdevtest": {ours: []string{"blockdev"}},
	"imageconv/imagetest":   {ours: []string{"blockdev"}},
	"test":                  {ours: []string{"test/guest"}},
	"test/guest":            {},
	"test/guest/nbdlink":    {}, // a program for guests
	"test/client":           {},
	"test/crash":            {ours: []string{"test/client"}},
	"test/ready":            {ours: []string{"test/client"}},
}

// helpers are never part of the product.
var helpers = []string{
	"blockdev/blockdevtest",
	"imageconv/imagetest",
	"internal/archtest",
	"test",
	"test/client",
	"test/crash",
	"test/guest",
	"test/guest/nbdlink",
	"test/ready",
}

// thirdParty gives each module from outside the one room that imports it, or the
// rooms below, so that it can be changed there.
var thirdParty = map[string]string{
	"github.com/sethvargo/go-envconfig":   "internal/config",
	"github.com/prometheus/client_golang": "internal/status",
	"github.com/klauspost/compress":       "imageconv",        // zstd: of clusters, and of whole images
	"github.com/therootcompany/xz":        "imageconv/packed", // its dictionary can be bounded
	"github.com/spf13/cobra":              command,
	"github.com/spf13/pflag":              command,
	"github.com/schollz/progressbar/v3":   command,
	"golang.org/x/term":                   command,
	"github.com/rogpeppe/go-internal":     "", // tests
	"go.uber.org/goleak":                  "", // tests
	"pgregory.net/rapid":                  "blockdev/blockdevtest",
}

// anyRoom may be imported wherever the operating system is spoken to.
var anyRoom = []string{"golang.org/x/sys/unix"}
