package scsi

import "github.com/containerdisk/containerdisk/blockdev"

// ErrWouldBlock is what the Try methods of a Task return when the request must
// wait: repeat it with the method of the plain name where waiting does no harm.
var ErrWouldBlock = blockdev.ErrWouldBlock

const keyAbortedCommand senseKey = 0xb

// What a transport finds wrong with the data-out of a task, for Task.Fail.
// RFC 7143 §11.4.7.2 assigns the sense data.
var (
	ErrDataCRC        error = fault{key: keyAbortedCommand, code: 0x4705} // PROTOCOL SERVICE CRC ERROR
	ErrUnexpectedData error = fault{key: keyAbortedCommand, code: 0x0c0c} // WRITE ERROR - UNEXPECTED UNSOLICITED DATA
	ErrDataAmount     error = fault{key: keyAbortedCommand, code: 0x0c0d} // WRITE ERROR - NOT ENOUGH UNSOLICITED DATA
)

// Fail ends the task with what the transport found wrong. A task that has
// failed before keeps its own reason.
func (t *Task) Fail(err error) {
	if t.Status() == Good {
		t.fail(err)
	}
}
