package http1

import "errors"

// ErrIncomplete says that the head goes on beyond the octets given: read more and call again.
var ErrIncomplete = errors.New("incomplete message head")

// Error is a message that must not be forwarded. The values are fixed and may be compared by
// their Reason; none is ever allocated. After any of them the connection it came from is closed.
type Error struct {
	// Status is what the client is told: 400, 405, 414, 417, 431, 501 or 505 where the request
	// is at fault, 502 where a backend's answer is.
	Status int
	// Reason is one stable word for the access log's detail.
	Reason string
}

func (e *Error) Error() string { return e.Reason }

// fault is what the parts shared by requests and answers report; zero is no fault. Which
// Error it becomes depends on who sent the message.
type fault uint8

const (
	noFault fault = iota
	incomplete
	badRequestLine
	badMethod
	methodNotAllowed
	methodTooLong
	badTarget
	targetTooLong
	badEscape
	dotSegment
	encodedSlash
	badVersion
	versionNotSupported
	badLineEnd
	bareCR
	badFieldName
	spaceBeforeColon
	obsFold
	controlInValue
	headTooLarge
	tooManyFields
	noHost
	duplicateHost
	badHost
	tooManyOptions
	badContentLength
	duplicateContentLength
	lengthAndChunked
	badTransferEncoding
	unknownCoding
	codingIn10
	unknownExpectation
	badChunkSize
	badChunkExtension
	extensionTooLarge
	badChunkEnd
	badTrailer
	trailerTooLarge
	truncatedBody
	badStatusLine
	unexpectedUpgrade
	faultCount
)

// requestErrors is the one list of reasons. A request gets its status from here.
var requestErrors = [faultCount]Error{
	badRequestLine:         {400, "bad_request_line"},
	badMethod:              {400, "bad_method"},
	methodNotAllowed:       {405, "method_not_allowed"},
	methodTooLong:          {501, "method_too_long"},
	badTarget:              {400, "bad_target"},
	targetTooLong:          {414, "target_too_long"},
	badEscape:              {400, "bad_escape"},
	dotSegment:             {400, "dot_segment"},
	encodedSlash:           {400, "encoded_slash"},
	badVersion:             {400, "bad_version"},
	versionNotSupported:    {505, "version_not_supported"},
	badLineEnd:             {400, "bad_line_end"},
	bareCR:                 {400, "bare_cr"},
	badFieldName:           {400, "bad_field_name"},
	spaceBeforeColon:       {400, "space_before_colon"},
	obsFold:                {400, "obs_fold"},
	controlInValue:         {400, "control_in_value"},
	headTooLarge:           {431, "head_too_large"},
	tooManyFields:          {431, "too_many_fields"},
	noHost:                 {400, "no_host"},
	duplicateHost:          {400, "duplicate_host"},
	badHost:                {400, "bad_host"},
	tooManyOptions:         {400, "too_many_connection_options"},
	badContentLength:       {400, "bad_content_length"},
	duplicateContentLength: {400, "duplicate_content_length"},
	lengthAndChunked:       {400, "length_and_chunked"},
	badTransferEncoding:    {400, "bad_transfer_encoding"},
	unknownCoding:          {501, "unknown_transfer_coding"},
	codingIn10:             {400, "transfer_encoding_in_1_0"},
	unknownExpectation:     {417, "unknown_expectation"},
	badChunkSize:           {400, "bad_chunk_size"},
	badChunkExtension:      {400, "bad_chunk_extension"},
	extensionTooLarge:      {400, "chunk_extension_too_large"},
	badChunkEnd:            {400, "bad_chunk_end"},
	badTrailer:             {400, "bad_trailer"},
	trailerTooLarge:        {431, "trailer_too_large"},
	truncatedBody:          {400, "truncated_body"},
	badStatusLine:          {502, "bad_status_line"},
	unexpectedUpgrade:      {502, "unexpected_upgrade"},
}

// responseErrors has the same reasons, all of them the backend's fault (RFC 9112 6.3).
var responseErrors = func() (t [faultCount]Error) {
	for f := range t {
		t[f] = Error{502, requestErrors[f].Reason}
	}
	return t
}()

// ErrEncodedSlash is for the caller to refuse a Request with EncodedSlash set when its route
// does not allow that; only the route knows.
var ErrEncodedSlash = &requestErrors[encodedSlash]

func requestError(f fault) error {
	if f == incomplete {
		return ErrIncomplete
	}
	return &requestErrors[f]
}

func responseError(f fault) error {
	if f == incomplete {
		return ErrIncomplete
	}
	return &responseErrors[f]
}
