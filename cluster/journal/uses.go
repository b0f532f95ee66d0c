package journal

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"
)

// uses is when each credential was used last, in whole seconds: a file of JSON, replaced when something has changed.
type uses struct {
	path string

	mu    sync.Mutex
	times map[string]int64
	dirty bool
}

// openUses reads what is known. It is a convenience: what cannot be read is forgotten.
func openUses(path string, log *slog.Logger) *uses {
	u := &uses{path: path, times: map[string]int64{}}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return u
	}
	if err == nil && info.Size() > usesBytesMax {
		err = errors.New("it is too large")
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, &u.times)
	}
	if err != nil || u.times == nil {
		log.Warn("when tokens were used last is forgotten", "path", path, "err", err)
		u.times = map[string]int64{}
	}
	return u
}

func (u *uses) note(token string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.times[token] >= at.Unix() {
		return
	}
	u.times[token] = at.Unix()
	u.dirty = true
	if len(u.times) > usesMax {
		oldest := token
		for id, t := range u.times {
			if t < u.times[oldest] {
				oldest = id
			}
		}
		delete(u.times, oldest)
	}
}

func (u *uses) last(token string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t, ok := u.times[token]; ok {
		return time.Unix(t, 0)
	}
	return time.Time{}
}

// write replaces the file if something has changed since.
func (u *uses) write() error {
	u.mu.Lock()
	dirty, times := u.dirty, maps.Clone(u.times)
	u.dirty = false
	u.mu.Unlock()
	if !dirty {
		return nil
	}
	text, err := json.Marshal(times)
	if err == nil {
		err = os.WriteFile(u.path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(u.path+".new", u.path)
	}
	if err != nil {
		u.mu.Lock()
		u.dirty = true
		u.mu.Unlock()
	}
	return err
}
