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

// encoding/json goes over each answer three times. A tap takes the pairs out of the body in one pass, and gives the API
// client an empty answer to decode. If it cannot parse a body, the API client gets the whole body. A list of 625 bells
// takes 0.50 ms with a tap, and 1.95 ms without one (BenchmarkTap). change/among-10000/p50-times-among-10 was 1.98 to
// 2.63 without a tap, and is 1.59 to 1.97 with it. The goal is 2.

type tap struct {
	pairs []*api.KVPair
	took  bool // the answer was parsed, and pairs has all its pairs
}

type tapKey struct{}

// tapped returns a context for one request, and the tap that receives the answer.
func tapped(ctx context.Context) (context.Context, *tap) {
	t := &tap{}
	return context.WithValue(ctx, tapKey{}, t), t
}

type taps struct{ next http.RoundTripper }

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const keptBody = 1 << 20 // bytes; larger buffers are not reused

// RoundTrip fills the tap of the request's context.
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
		// The API client gets the error at the same place.
		resp.Body = readCloser{io.MultiReader(buf, failing{err}), resp.Body}
		return resp, nil //nolint:nilerr // the body returns it
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

var (
	noPairs   = []byte(`[]`)
	noResults = []byte(`{}`)
)

// take returns the empty answer for the API client, or nil if it cannot parse the whole body.
func (t *tap) take(body []byte) (left []byte) {
	s := scanner{b: body}
	switch {
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

// scanner reads JSON from left to right. If it cannot parse something, it sets bad, and its results are not valid.
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

// list reads the rest of an array, without elements that have no pair (nil).
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

// object reads the rest of an object, and calls value to read each field.
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

// results reads the rest of a transaction's answer. One with errors has another status and no tap.
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

var pairFields = []string{
	"Key", "Session", "Value", "Flags", "LockIndex", "CreateIndex", "ModifyIndex",
	"Namespace", "Partition",
}

// other skips the value of a field that is not needed. encoding/json would use a field that differs from a needed one
// only in case, so such an answer is bad.
func (s *scanner) other(name []byte, fields ...string) {
	for _, f := range fields {
		if bytes.EqualFold(name, []byte(f)) {
			s.bad = true
			return
		}
	}
	s.skip()
}

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

// quoted returns a part of the body if the text is plain, else a copy.
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
			s.i++ // an escaped character does not end the text
		case c < ' ' || c >= 0x80: // control characters are not allowed, and the rest may not be UTF-8
			plain = false
		}
	}
	s.bad = true
	return nil
}

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
