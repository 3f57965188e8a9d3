// Package wire is what connections of all protocols do alike: what has arrived
// is worked through in one go, the answers leave in one write, and what must
// wait for the disk is copied out of the way. It knows no protocol.
package wire
