// Package volume knows the directories that hold disks: which names are used
// in them, who owns them and when they are cleaned up.
package volume
