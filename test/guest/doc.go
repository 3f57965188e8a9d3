// Package guest boots small Linux machines for the end-to-end tests: Debian's
// own kernel, a RAM disk made on the spot, and qemu in software emulation (the
// tests must run where there is no KVM, and a guest of ours is up in seconds
// without it).
//
// A guest has two serial ports. The first is the kernel's console and the
// standard error of the work; it goes to the log of a failed test. The second
// is the standard output of the work, free of kernel messages; it is what a
// test reads. The work ends by writing its exit status there (see Status), so
// a guest that dies half way is never taken for one that had nothing to say.
package guest
