package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// readStore finds out where the disk is kept. Whoever names a scratch directory
// means one that is there the next time: a container that is restarted goes on
// with its disk. The directory for temporary files is left as it was found.
func readStore(r *reader, env *environment, c *Config) {
	parse(r, env.Store.ScratchDir, &c.ScratchDir, asIs)
	alias(r, env.Former.CopyPath, env.Store.ScratchDir, &c.ScratchDir, asIs)
	var dirs map[string]string
	parse(r, env.Store.ScratchDirs, &dirs, parseDirs)
	if v := env.Store.UsageType; v.set && !r.bad([]string{env.Store.ScratchDirs.name}) {
		parse(r, v, &c.ScratchDir, usageType(dirs))
	}
	c.KeepScratch = c.ScratchDir != env.Store.ScratchDir.fallback
	parse(r, env.Store.KeepScratch, &c.KeepScratch, parseBool)
	parse(r, env.Store.VolumePath, &c.VolumePath, asIs)
	parse(r, env.Store.Preallocate, &c.Preallocate, oneOf("unknown", PreallocateNone, PreallocateFalloc))
	parse(r, env.Store.Populated, &c.Populated, oneOf("unknown", PopulatedAuto, PopulatedYes, PopulatedNo))
}

// parseDirs reads directories by name.
func parseDirs(s string) (map[string]string, error) {
	dirs := map[string]string{}
	for _, item := range strings.Split(s, ",") {
		name, dir, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || name == "" || dir == "" {
			return nil, errors.New("want usage types and their directories, as in fast=/storage/ssd,slow=/storage/rust")
		}
		if _, twice := dirs[name]; twice {
			return nil, fmt.Errorf("%q is there twice", name)
		}
		dirs[name] = dir
	}
	return dirs, nil
}

// usageType looks a type up in dirs.
func usageType(dirs map[string]string) func(string) (string, error) {
	return func(s string) (string, error) {
		if dir, ok := dirs[s]; ok {
			return dir, nil
		}
		if len(dirs) == 0 {
			return "", errors.New("there are no usage types; set SCRATCH_DIRS as well")
		}
		return "", fmt.Errorf("unknown; SCRATCH_DIRS has %s", list(slices.Sorted(maps.Keys(dirs))))
	}
}

// storeProblems are those of where the disk is kept.
func (c Config) storeProblems() []problem {
	var ps []problem
	add := func(broken bool, text string, about ...string) {
		if broken {
			ps = append(ps, problem{about, text})
		}
	}
	volume := c.VolumePath != ""
	add(volume && (c.CopyMode == CopyWrite || c.CopyMode == CopyRead),
		fmt.Sprintf("COPY_MODE=%q: a disk on a volume does without its image; want clone, or none for a volume that holds its disk already, or unset VOLUME_PATH", c.CopyMode),
		"COPY_MODE", "VOLUME_PATH")
	add(volume && c.MultiDisk, "MULTI_DISK: a volume is for one disk; unset it or VOLUME_PATH", "MULTI_DISK", "VOLUME_PATH")
	add(!volume && c.Preallocate == PreallocateFalloc,
		"PREALLOCATE=\"falloc\": space is set aside on volumes only; set VOLUME_PATH as well, or unset it", "PREALLOCATE", "VOLUME_PATH")
	add(!volume && c.Populated != PopulatedAuto && c.Populated != "",
		fmt.Sprintf("POPULATED=%q: is about the block device that VOLUME_PATH names; set that as well, or unset it", c.Populated), "POPULATED", "VOLUME_PATH")
	add(c.HydrateRate != 0 && c.CopyMode != CopyClone,
		fmt.Sprintf("HYDRATE_RATE: nothing is copied beside the guest with COPY_MODE=%q; unset one of them", c.CopyMode), "HYDRATE_RATE", "COPY_MODE")
	return ps
}
