package imageconv

// A disc image has volume descriptors from its sector 16 on, of 2048 bytes each:
// ECMA-119 (ISO 9660), "Volume descriptors", and ECMA-167 (UDF), "Volume
// recognition". The sectors before are for whoever boots the disc: a hybrid
// image, which can be written to a USB stick, has a partition table there. That
// makes it no image of two formats: the table says where the same bytes are, and
// a guest that gets it as a disk or as a CD sees one or the other. The header of
// another image format there does, and is refused as in any other file.
const (
	discSector         = 2048
	firstDescriptor    = 16
	descriptorID       = 1 // 5 bytes, in the descriptor
	descriptorsToLook  = 4
	descriptorISO      = "CD001"
	descriptorExtended = "BEA01" // what follows belongs to UDF
	descriptorUDF2     = "NSR02"
	descriptorUDF3     = "NSR03"
)

// isISO is the probe for ISO 9660 and UDF.
func isISO(e *ends) bool {
	switch e.descriptor(0) {
	case descriptorISO:
		return true
	case descriptorExtended:
		for i := range descriptorsToLook {
			if id := e.descriptor(i); id == descriptorUDF2 || id == descriptorUDF3 {
				return true
			}
		}
	}
	return false
}

// descriptor is the identifier of the i-th volume descriptor, or "".
func (e *ends) descriptor(i int) string {
	at := (firstDescriptor+i)*discSector + descriptorID
	if at+len(descriptorISO) > len(e.head) {
		return ""
	}
	return string(e.head[at:][:len(descriptorISO)])
}
