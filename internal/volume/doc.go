// Package volume knows the directories that hold disks: which names are used
// in them, who owns them, what survives there and when it is cleaned up.
//
// A disk that is made of an image has a State: a directory with its store (a
// raw file), the map of what is in the store, and what its initiators asked to
// be remembered. It goes through these names, each a step that a death of the
// process or a loss of power can interrupt:
//
//	.NAME.making-*  being made: nothing in it counts
//	.NAME.new       served, but nothing was promised to survive a loss of power:
//	                its files may not even have reached the disk
//	NAME            everything in it was synced when it got this name
//	.NAME.gone-*    being removed
//
// In a scratch directory NAME is containerdisk-…, and stays. In a Volume, which
// is a file system with room for one disk, it is .containerdisk beside the place
// of disk.img; when the store is complete it becomes disk.img, and the directory
// goes. Nobody ever sees half a disk.img.
//
// All locks are flock(2): they end with the process however that dies, and a
// pid that is used again fools nobody.
package volume
