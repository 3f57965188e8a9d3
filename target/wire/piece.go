package wire

import "sync"

// PieceSize is the most that a buffer of Piece holds, bytes.
const PieceSize = 256 << 10

// smallPiece is the size in bytes from which a buffer is worth keeping.
const smallPiece = 16 << 10

// pieces are buffers for what waits between a wire and a disk.
var pieces = sync.Pool{New: func() any { b := make([]byte, PieceSize); return &b }}

// Piece returns a buffer of PieceSize bytes. FreePiece takes it back.
func Piece() []byte { return *pieces.Get().(*[]byte) }

// PieceFor returns a buffer for n bytes, or of PieceSize if these are more.
func PieceFor(n int64) []byte {
	if n <= smallPiece {
		return make([]byte, n)
	}
	return Piece()
}

// CopyPiece returns a copy of data, of at most PieceSize bytes.
func CopyPiece(data []byte) []byte { return append(PieceFor(int64(len(data)))[:0], data...) }

// FreePiece takes back what Piece, PieceFor or CopyPiece returned.
func FreePiece(b []byte) {
	if cap(b) == PieceSize {
		b = b[:cap(b)]
		pieces.Put(&b)
	}
}
