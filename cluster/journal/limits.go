package journal

import "time"

const (
	// fileBytesMax bounds audit.log: with the one before it at least a thousand minutes of one stranger's tries.
	fileBytesMax = 4 << 20
	// writeInterval is how long refusals of the same kind are summed.
	writeInterval = time.Minute
	// sumsMax bounds what is told apart in one interval: a stranger with many addresses fills a minute with it, not the disk.
	sumsMax = 512
	// causesMax bounds the messages that are told apart of one caller, method and result in one interval.
	causesMax = 8
	// queuedMax bounds what waits for a disk that refuses.
	queuedMax = 4 * sumsMax
	// textBytesMax bounds each text of an entry, lineBytesMax a line with all of them.
	textBytesMax = 512
	lineBytesMax = 16 << 10
	// usesMax bounds the credentials whose last use is known: more than the cluster keeps.
	usesMax = 4096
	// usesBytesMax bounds the file with them.
	usesBytesMax = 1 << 20
	// syslogTimeout is what a syslog daemon has to take a line.
	syslogTimeout = time.Second
)
