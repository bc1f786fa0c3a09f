package consul

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/hashicorp/consul/api"
)

// Lists and answers of transactions are most of what a farm reads, and encoding/json goes over each of them three times: to find its
// end, to check it, and to fill structures by reflection. A tap takes the pairs out of the body in one pass, and leaves an empty answer
// of the same kind for the API client to decode. Whatever the tap does not understand it leaves to the API client.

// tap receives the pairs of one answer.
type tap struct {
	blind bool // nobody wants the pairs of a transaction, only that it was carried out
	pairs []*api.KVPair
	took  bool // the answer was understood, and pairs is all of it, unless it is blind
}

type tapKey struct{}

// tapped returns a context whose answer of pairs goes to the tap.
func tapped(ctx context.Context) (context.Context, *tap) {
	t := &tap{}
	return context.WithValue(ctx, tapKey{}, t), t
}

// taps is the transport that serves them.
type taps struct{ next http.RoundTripper }

// bodies are buffers for answers. Those of large answers are left to the garbage collector.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const keptBody = 1 << 20 // bytes

// RoundTrip sends the request, and serves the tap of its context.
func (t taps) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	sink, _ := req.Context().Value(tapKey{}).(*tap)
	if err != nil || sink == nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	buf := bodies.Get().(*bytes.Buffer)
	buf.Reset()
	if n := resp.ContentLength; n > 0 {
		buf.Grow(int(min(n, keptBody)))
	}
	if _, err := buf.ReadFrom(resp.Body); err != nil {
		resp.Body = readCloser{io.MultiReader(buf, failing{err}), resp.Body} // the API client meets the error where it was
		return resp, nil                                                     //nolint:nilerr // the body bears it
	}
	rest := sink.take(buf.Bytes())
	if rest == nil {
		resp.Body = readCloser{buf, resp.Body}
		return resp, nil
	}
	if buf.Cap() <= keptBody {
		bodies.Put(buf)
	}
	resp.Body = readCloser{bytes.NewReader(rest), resp.Body}
	return resp, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Empty answers of the two kinds.
var (
	noPairs   = []byte(`[]`)
	noResults = []byte(`{}`)
)

// take parses a whole answer. It returns the empty answer that is left, or nil when it does not understand it.
func (t *tap) take(body []byte) (left []byte) {
	s := scanner{b: body}
	switch {
	case t.blind && s.resultsAlone():
		t.took = true
		return noResults
	case s.next('['):
		t.pairs, left = s.list(s.pair), noPairs
	case s.next('{'):
		t.pairs, left = s.results(), noResults
	}
	if s.space(); s.bad || left == nil || s.i != len(s.b) {
		t.pairs = nil
		return nil
	}
	t.took = true
	return left
}

// scanner reads JSON from left to right. After the first thing that it does not understand it is bad, and what it returns means nothing.
type scanner struct {
	b   []byte
	i   int
	bad bool
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// next passes by a character if it comes next.
func (s *scanner) next(c byte) bool {
	if s.space(); s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) must(c byte) {
	if !s.next(c) {
		s.bad = true
	}
}

// list reads the rest of an array. An element without a pair (nil) is left out.
func (s *scanner) list(element func() *api.KVPair) []*api.KVPair {
	var pairs []*api.KVPair
	if s.next(']') {
		return pairs
	}
	for !s.bad {
		if p := element(); p != nil {
			pairs = append(pairs, p)
		}
		if s.next(']') {
			return pairs
		}
		s.must(',')
	}
	return nil
}

// object reads the rest of an object, and has each of its fields read by value.
func (s *scanner) object(value func(name []byte)) {
	if s.next('}') {
		return
	}
	for !s.bad {
		name := s.quoted()
		s.must(':')
		if s.bad {
			return
		}
		value(name)
		if s.next('}') {
			return
		}
		s.must(',')
	}
}

// results reads the rest of a transaction's answer. Errors come with another status than the one that is tapped.
func (s *scanner) results() (pairs []*api.KVPair) {
	seen := false
	s.object(func(name []byte) {
		switch {
		case string(name) != "Results":
			s.other(name, "Results")
		case seen:
			s.bad = true
		case s.null():
		default:
			s.must('[')
			pairs, seen = s.list(s.result), true
		}
	})
	return pairs
}

// resultsAlone reports whether the body looks like that of a transaction which was carried out, without reading it. Where it does not, the
// scanner has not moved.
func (s *scanner) resultsAlone() bool {
	try := *s
	try.must('{')
	name := try.quoted()
	try.must(':')
	try.must('[')
	return !try.bad && string(name) == "Results" && bytes.HasSuffix(bytes.TrimRight(s.b, " \t\r\n"), []byte("}"))
}

// result reads one result of a transaction.
func (s *scanner) result() (p *api.KVPair) {
	s.must('{')
	s.object(func(name []byte) {
		switch {
		case string(name) != "KV":
			s.other(name, "KV")
		case p != nil:
			s.bad = true
		case !s.null():
			p = s.pair()
		}
	})
	return p
}

// pair reads one pair.
func (s *scanner) pair() *api.KVPair {
	p := &api.KVPair{}
	s.must('{')
	s.object(func(name []byte) {
		switch string(name) {
		case "Key":
			p.Key = string(s.quoted())
		case "Session":
			p.Session = string(s.quoted())
		case "Value":
			p.Value = s.base64()
		case "Flags":
			p.Flags = s.number()
		case "LockIndex":
			p.LockIndex = s.number()
		case "CreateIndex":
			p.CreateIndex = s.number()
		case "ModifyIndex":
			p.ModifyIndex = s.number()
		case "Namespace", "Partition":
			s.quoted()
		default:
			s.other(name, pairFields...)
		}
	})
	return p
}

var pairFields = []string{"Key", "Session", "Value", "Flags", "LockIndex", "CreateIndex", "ModifyIndex", "Namespace", "Partition"}

// other passes by the value of a field that nobody asked for. One that is called like a field which is read, but for capitals, is not
// understood: encoding/json would take it.
func (s *scanner) other(name []byte, fields ...string) {
	for _, f := range fields {
		if bytes.EqualFold(name, []byte(f)) {
			s.bad = true
			return
		}
	}
	s.skip()
}

// null passes by a null if it comes next.
func (s *scanner) null() bool {
	if s.space(); bytes.HasPrefix(s.b[s.i:], []byte("null")) {
		s.i += len("null")
		return true
	}
	return false
}

func (s *scanner) number() uint64 {
	s.space()
	from := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	n, err := strconv.ParseUint(string(s.b[from:s.i]), 10, 64)
	s.bad = s.bad || err != nil || s.i-from > 1 && s.b[from] == '0'
	return n
}

// quoted reads a text. It is part of the body unless something in it was escaped.
func (s *scanner) quoted() []byte {
	if s.must('"'); s.bad {
		return nil
	}
	from, plain := s.i, true
	for ; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			text := s.b[from:s.i]
			s.i++
			if plain {
				return text
			}
			var unescaped string
			if err := json.Unmarshal(s.b[from-1:s.i], &unescaped); err != nil {
				s.bad = true
			}
			return []byte(unescaped)
		case c == '\\':
			plain = false
			s.i++ // whatever it is, it does not end the text
		case c < ' ' || c >= 0x80: // the former is not allowed; the latter may not be UTF-8
			plain = false
		}
	}
	s.bad = true
	return nil
}

// base64 reads a value; null is none.
func (s *scanner) base64() []byte {
	if s.null() {
		return nil
	}
	text := s.quoted()
	if s.bad {
		return nil
	}
	value := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(value, text)
	s.bad = s.bad || err != nil
	return value[:n]
}

// skip passes by one value of any kind.
func (s *scanner) skip() {
	s.space()
	d := json.NewDecoder(bytes.NewReader(s.b[s.i:]))
	var any json.RawMessage
	if err := d.Decode(&any); err != nil {
		s.bad = true
		return
	}
	s.i += int(d.InputOffset())
}
