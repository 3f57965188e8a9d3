// Package crash kills the real program at random moments under a workload that
// knows what every sector may hold, and looks at the disk afterwards.
//
// Two promises are tested. A process that dies loses nothing that it has
// acknowledged (TestKill). A loss of power loses nothing that was flushed, and
// what was not reads, sector by sector, as it was before or after
// (TestPowerCut). Under both, a sector that was never written reads as the
// image, and no sector is torn.
//
// CRASH_KILLS and CRASH_CUTS say how often, CRASH_SEED repeats a run's choices
// (but not the kernel's).
package crash
