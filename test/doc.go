// Package e2e tests the containerdisk program end to end: the real binary as
// a process of its own, and the clients that people use — qemu, libiscsi's
// programs, the Linux kernel's initiator in a guest, a guest that boots from
// the disk, Docker.
//
//	go test -tags e2e ./test/...
//
// builds the binary and runs everything that this machine has the tools for.
// The environment changes it:
//
//	CONTAINERDISK_BIN  test this binary, do not build one
//	E2E_REQUIRE=all    a missing tool is a failure, not a skip (for CI)
//	E2E_CACHE          where the guest kernel is kept; default: a directory
//	                   of the user's cache
//	E2E_COMPARE=tgtd   run libiscsi's suite against tgtd as well, to have both
//	                   numbers from one machine and day
package e2e
