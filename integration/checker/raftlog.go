package checker

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	bolt "go.etcd.io/bbolt"
)

// Entry is one entry of the Raft log. Its index is the modify index of every key that it changed.
type Entry struct {
	Index, Term uint64
	Kind        uint8 // raft's; zero is a command
	Data        []byte
	At          int64 // when the leader appended it, unix nanoseconds
}

type stored struct {
	Index, Term uint64
	Type        uint8
	Data        []byte
	AppendedAt  []byte // see appendedAt
}

const openLimit = 10 * time.Second

// readLogs merges the logs of all servers, because one that installed a snapshot has a gap. If entries differ, the
// server that is furthest ahead is right: the other entries were never committed.
func readLogs(dir string, servers []string) ([]Entry, error) {
	logs := make([]map[uint64]Entry, len(servers))
	for i, name := range servers {
		var err error
		if logs[i], err = readLog(LogFile(dir, name)); err != nil {
			return nil, fmt.Errorf("%w: log of %s: %w", ErrHarness, name, err)
		}
	}
	slices.SortFunc(logs, func(a, b map[uint64]Entry) int {
		x, y := last(a), last(b)
		return cmp.Or(cmp.Compare(y.Term, x.Term), cmp.Compare(y.Index, x.Index))
	})
	merged := map[uint64]Entry{}
	for _, log := range logs {
		for index, e := range log {
			if _, known := merged[index]; !known {
				merged[index] = e
			}
		}
	}
	if len(merged) == 0 {
		return nil, fmt.Errorf("%w: the servers have no log", ErrHarness)
	}
	out := slices.SortedFunc(maps.Values(merged), func(a, b Entry) int { return cmp.Compare(a.Index, b.Index) })
	if out[0].Index != 1 {
		return nil, fmt.Errorf("%w: the log starts at index %d", ErrHarness, out[0].Index)
	}
	return out, nil
}

func last(log map[uint64]Entry) Entry {
	var end Entry
	for _, e := range log {
		if e.Index > end.Index {
			end = e
		}
	}
	return end
}

func readLog(path string) (map[uint64]Entry, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: openLimit})
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }() // it was only read
	out := map[uint64]Entry{}
	err = db.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket([]byte("logs"))
		if bucket == nil {
			return errors.New("no bucket of logs")
		}
		return bucket.ForEach(func(k, v []byte) error {
			var s stored
			if err := decode(v, &s); err != nil {
				return fmt.Errorf("entry %d: %w", binary.BigEndian.Uint64(k), err)
			}
			out[s.Index] = Entry{Index: s.Index, Term: s.Term, Kind: s.Type, Data: s.Data, At: appendedAt(s.AppendedAt)}
			return nil
		})
	})
	return out, err
}

// appendedAt reads a timestamp of MessagePack, in unix nanoseconds: 30 bits of nanoseconds before 34 bits of seconds,
// or only 32 bits of seconds.
func appendedAt(data []byte) int64 {
	const bitsOfSeconds = 34
	switch len(data) {
	case 4:
		return int64(binary.BigEndian.Uint32(data)) * int64(time.Second)
	case 8:
		v := binary.BigEndian.Uint64(data)
		return int64(v&(1<<bitsOfSeconds-1))*int64(time.Second) + int64(v>>bitsOfSeconds)
	default:
		return 0
	}
}

func decode(data []byte, v any) error {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	return codec.NewDecoder(bytes.NewReader(data), h).Decode(v)
}
