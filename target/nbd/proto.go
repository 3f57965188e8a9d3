package nbd

import (
	"fmt"

	"github.com/containerdisk/containerdisk/internal/be"
)

// Magic numbers, "Values".
const (
	magicInit    uint64 = 0x4e42444d41474943 // NBDMAGIC
	magicOption  uint64 = 0x49484156454f5054 // IHAVEOPT
	magicReply   uint64 = 0x0003e889045565a9
	magicRequest uint32 = 0x25609513
	magicSimple  uint32 = 0x67446698
	magicChunk   uint32 = 0x668e33ef
)

// Handshake flags, ours and the client's.
const (
	flagFixedNewstyle uint16 = 1 << 0
	flagNoZeroes      uint16 = 1 << 1

	clientFixedNewstyle uint32 = 1 << 0
	clientNoZeroes      uint32 = 1 << 1
)

// Transmission flags: what may be done with an export.
const (
	flagHasFlags        uint16 = 1 << 0
	flagReadOnly        uint16 = 1 << 1
	flagSendFlush       uint16 = 1 << 2
	flagSendFUA         uint16 = 1 << 3
	flagSendTrim        uint16 = 1 << 5
	flagSendWriteZeroes uint16 = 1 << 6
	flagSendDF          uint16 = 1 << 7
	flagCanMultiConn    uint16 = 1 << 8
	flagSendCache       uint16 = 1 << 10
	flagSendFastZero    uint16 = 1 << 11
)

// option is an "Option type".
type option uint32

const (
	optExportName      option = 1
	optAbort           option = 2
	optList            option = 3
	optStartTLS        option = 5
	optInfo            option = 6
	optGo              option = 7
	optStructuredReply option = 8
	optListMetaContext option = 9
	optSetMetaContext  option = 10
	optExtendedHeaders option = 11
)

// optionReply is an "Option reply type". The errors have the top bit set.
type optionReply uint32

const (
	repAck         optionReply = 1
	repServer      optionReply = 2
	repInfo        optionReply = 3
	repMetaContext optionReply = 4

	repErrUnsup    optionReply = 1<<31 + 1
	repErrPolicy   optionReply = 1<<31 + 2
	repErrInvalid  optionReply = 1<<31 + 3
	repErrPlatform optionReply = 1<<31 + 4
	repErrTLSReqd  optionReply = 1<<31 + 5
	repErrUnknown  optionReply = 1<<31 + 6
	repErrShutdown optionReply = 1<<31 + 7
	repErrTooBig   optionReply = 1<<31 + 9
)

// infoType is a kind of information about an export, "Option reply types",
// NBD_REP_INFO.
type infoType uint16

const (
	infoExport      infoType = 0
	infoName        infoType = 1
	infoDescription infoType = 2
	infoBlockSize   infoType = 3
)

// command is a "Request type".
type command uint16

const (
	cmdRead        command = 0
	cmdWrite       command = 1
	cmdDisc        command = 2
	cmdFlush       command = 3
	cmdTrim        command = 4
	cmdCache       command = 5
	cmdWriteZeroes command = 6
	cmdBlockStatus command = 7
)

// commandFlags are the "Command flags".
type commandFlags uint16

const (
	flagFUA      commandFlags = 1 << 0
	flagNoHole   commandFlags = 1 << 1
	flagDF       commandFlags = 1 << 2
	flagReqOne   commandFlags = 1 << 3
	flagFastZero commandFlags = 1 << 4
)

// chunkType is a "Structured reply type".
type chunkType uint16

const (
	chunkNone        chunkType = 0
	chunkOffsetData  chunkType = 1
	chunkOffsetHole  chunkType = 2
	chunkBlockStatus chunkType = 5
	chunkError       chunkType = 1<<15 + 1
)

const chunkFlagDone uint16 = 1 << 0 // the last chunk of its reply

// Status flags of base:allocation.
const (
	stateHole uint32 = 1 << 0
	stateZero uint32 = 1 << 1
)

// Status flags of containerdisk:hydration.
const (
	stateRemote uint32 = 1 << 0 // not copied yet: it comes from the image
)

// errno is one of the "Error values".
type errno uint32

const (
	eOK       errno = 0
	ePerm     errno = 1
	eIO       errno = 5
	eInval    errno = 22
	eNoSpc    errno = 28
	eNotSup   errno = 95
	eShutdown errno = 108
)

func (e errno) String() string {
	switch e {
	case eOK:
		return "OK"
	case ePerm:
		return "EPERM"
	case eIO:
		return "EIO"
	case eInval:
		return "EINVAL"
	case eNoSpc:
		return "ENOSPC"
	case eNotSup:
		return "ENOTSUP"
	case eShutdown:
		return "ESHUTDOWN"
	}
	return fmt.Sprintf("errno(%d)", uint32(e))
}

// Option request, "Haggling": what the client sends.
const (
	optMagic  be.U64 = 0
	optNumber be.U32 = 8
	optLen    be.U32 = 12 // of the data that follow
	optHdrLen        = 16
)

// Option reply.
const (
	repMagic  be.U64 = 0
	repOption be.U32 = 8
	repType   be.U32 = 12
	repLen    be.U32 = 16
	repHdrLen        = 20
)

// Request message, "Transmission phase".
const (
	reqMagic  be.U32 = 0
	reqFlags  be.U16 = 4
	reqType   be.U16 = 6
	reqCookie be.U64 = 8
	reqOffset be.U64 = 16
	reqLength be.U32 = 24
	reqLen           = 28
)

// Simple reply message.
const (
	simpleMagic  be.U32 = 0
	simpleError  be.U32 = 4
	simpleCookie be.U64 = 8
	simpleLen           = 16
)

// Structured reply chunk message.
const (
	chunkMagic  be.U32 = 0
	chunkFlags  be.U16 = 4
	chunkKind   be.U16 = 6
	chunkCookie be.U64 = 8
	chunkLength be.U32 = 16
	chunkHdrLen        = 20

	chunkOffset  be.U64 = chunkHdrLen // OFFSET_DATA, OFFSET_HOLE
	chunkDataLen        = chunkHdrLen + 8
	chunkHole    be.U32 = chunkHdrLen + 8 // OFFSET_HOLE: its size
	chunkHoleLen        = chunkHdrLen + 12
)

// Limits of what a client may ask for, bytes.
const (
	// maxString is the longest string, "Conventions".
	maxString = 4096
	// maxOptionData is the most data of an option: a list of queries.
	maxOptionData = 64 << 10
	// maxPayload is the longest read or write, as INFO_BLOCK_SIZE says and as
	// clients may expect that ask for none, "Block size constraints".
	maxPayload = 32 << 20
	// maxCache is how much one CACHE reads ahead; more is not worth the wait.
	maxCache = 32 << 20
)
