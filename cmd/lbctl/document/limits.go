package document

// The package's limits. They bound what a hostile or broken document can cost; none is near what an honest one needs.
const (
	// documentBytesMax bounds all files of one call together: an export of 10,000 certificates is about 40 MiB.
	documentBytesMax = 64 << 20
	// contentBytesMax bounds one file or variable named in a document: a chain of ten certificates is about 20 KiB.
	contentBytesMax = 1 << 20
	// aliasValuesMax bounds the values that aliases add, over all files of one call: 10,000 routes that share a list of 20.
	aliasValuesMax = 1 << 18
	// mergeDepthMax bounds merge keys inside merged mappings; an anchor can contain itself.
	mergeDepthMax = 16
	// quotedRunesMax bounds a word of the document in a message.
	quotedRunesMax = 60
	// nameShownBytesMax is the longest name of a file or variable in a message: the shortest private keys are longer.
	nameShownBytesMax = 100
)
