package lbdv1

import _ "embed"

// ResourceSource is the text of resource.proto. Descriptors hold no comments, and these are the contract that
// `lbctl explain` prints.
//
//go:embed resource.proto
var ResourceSource string
