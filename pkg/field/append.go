package field

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// What follows appends values as encoding/json writes them, for records of which thousands are written at once: reflection would be
// most of the work.

// AppendText appends a text with its quotes.
func AppendText(b []byte, s string) []byte {
	if !Plain(s) {
		data, err := json.Marshal(s)
		if err != nil {
			panic(fmt.Sprintf("encode %q: %v", s, err))
		}
		return append(b, data...)
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// AppendTime appends a time with its quotes.
func AppendTime(b []byte, t time.Time) []byte {
	b, err := t.AppendText(append(b, '"'))
	if err != nil {
		panic(fmt.Sprintf("encode %v: %v", t, err))
	}
	return append(b, '"')
}

// AppendMap appends a map, sorted by its keys.
func AppendMap[V any](b []byte, m map[string]V, value func([]byte, V) []byte) []byte {
	if m == nil {
		return append(b, "null"...)
	}
	b = append(b, '{')
	keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(AppendText(b, key), ':')
		b = value(b, m[key])
	}
	return append(b, '}')
}

// AppendInt appends a number.
func AppendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }

// NumberBytes is an upper bound of an integer's length in JSON.
const NumberBytes = len("-9223372036854775808")

// TimeBytes is an upper bound of a time's length in JSON, with its quotes.
const TimeBytes = len(`"2006-01-02T15:04:05.999999999-07:00"`)

// TextBytes returns an upper bound of a text's length in JSON, without its quotes. Where many records are to be packed into
// few transactions, bounds are much cheaper than encoding the records to know their size.
func TextBytes(s string) int {
	const escape = len(`\u0000`)
	if !Plain(s) {
		return escape * len(s)
	}
	return len(s)
}

// Plain reports whether a text is in JSON as it is.
func Plain(s string) bool {
	for i := range len(s) {
		if escaped[s[i]] {
			return false
		}
	}
	return true
}

// escaped are the bytes in whose place JSON may have something else.
var escaped = func() (is [256]bool) {
	for b := range is {
		is[b] = b < ' ' || b >= 0x7f || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&'
	}
	return is
}()
