package state

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

// recipientForm is how a recipient of age looks; whether it is one, its checksum says to those who encrypt.
var recipientForm = regexp.MustCompile(`^age1[02-9ac-hj-np-z]{58}$`)

// ParseBackupSchedule reads how often ("6h") or at which time of day, in UTC ("03:30"), backups are made. Of the two answers the other is 0;
// midnight is 0 for both.
func ParseBackupSchedule(text string) (every, at time.Duration, err error) {
	if strings.Contains(text, ":") {
		t, err := time.Parse("15:04", text)
		if err != nil {
			return 0, 0, fmt.Errorf("`%s` is no time of day: want `03:30`", text)
		}
		return 0, time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, nil
	}
	every, err = time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("`%s` is no schedule: want `6h`, or a time of day (UTC) as `03:30`", text)
	case every < backupEveryMin || every > backupEveryMax:
		return 0, 0, fmt.Errorf("must be 1h to 8760h, not %s", text)
	}
	return every, 0, nil
}

func (c *checker) checkBackup(b *lbdv1.BackupSettings) {
	if b == nil {
		return
	}
	if b.GetSchedule() == "" {
		c.errorf("backup.schedule", "is required: `6h`, or a time of day (UTC) as `03:30`")
	} else if _, _, err := ParseBackupSchedule(b.GetSchedule()); err != nil {
		c.errorf("backup.schedule", "%v", err)
	}
	switch dir := b.GetDirectory(); {
	case dir == "":
		c.errorf("backup.directory", "is required: an absolute path on the nodes")
	case !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" || len(dir) > pathBytesMax || strings.ContainsFunc(dir, func(r rune) bool { return r < ' ' || r == 0x7f }):
		c.errorf("backup.directory", "`%s` is no absolute path in its shortest form", dir)
	}
	if b.GetKeep() != 0 {
		c.checkRange("backup.keep", int64(b.GetKeep()), 1, backupsKeptMax)
	}
	c.checkMost("backup.recipients", len(b.GetRecipients()), backupRecipientsMax)
	c.checkDistinct("backup.recipients", b.GetRecipients())
	for i, r := range b.GetRecipients() {
		if !recipientForm.MatchString(r) {
			c.errorf(itemPath("backup.recipients", i), "`%s` is no recipient of age: want age1…, as age-keygen prints it", r)
		}
	}
	if len(b.GetRecipients()) == 0 {
		c.warnf("backup.recipients", "are missing: the backups are without the sealing key, keep a copy of seal.key elsewhere")
	}
}
