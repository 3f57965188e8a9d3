// Package scsi is a SCSI device server without a transport: a CDB goes in;
// data, a status and sense data come out. It speaks SAM-5, SPC-4 and SBC-3 for
// direct-access block devices that are thin provisioned and have a write cache.
//
// A Target has LUNs; an initiator port that reaches it has a Nexus; one command
// of a nexus is a Task. The road of a command:
//
//	Task.Begin     finds the logical unit and the command's row in the table
//	               (table.go) and passes the gate (gate.go): what can be refused
//	               without data is refused there, and nowhere below
//	Task.Read      data-in, straight from the disk or from a reply built by Begin
//	Task.Write     data-out, straight to the disk or collected as a parameter list
//	Task.Finish    what is left: a parameter list to execute, a flush
//
// A command is a row: what differs between commands is data, what they do is a
// short method of Task. The write protection, reservation, unit attention and
// readiness rules look at the row's flags; REPORT SUPPORTED OPERATION CODES is
// written from the same rows.
//
// A failure is an error value: a fault (sense data to be), a Status, or an
// error of package blockdev, which senseOf translates. Task.fail is the only
// place that makes a status of them.
//
// Specifications are cited by the name of the command or table, as T10's
// section numbers move between drafts.
package scsi
