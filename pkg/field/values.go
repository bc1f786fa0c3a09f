package field

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"
)

// Duration is a time.Duration that is written as text with a unit, such as "30s" or "1m30s". It is never negative.
type Duration time.Duration

const durationAllowed = `a length of time with a unit, zero or more, such as "500ms", "30s" or "10m"`

// UnmarshalJSON reads the text form; anything else, null included, is an *Error.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var s *string
	if err := json.Unmarshal(data, &s); err != nil || s == nil {
		return &Error{Value: Text(data), Allowed: durationAllowed}
	}
	v, err := time.ParseDuration(*s)
	if err != nil || v < 0 {
		return &Error{Value: *s, Allowed: durationAllowed}
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON writes the text form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// Or returns the duration, or the default when it is unset. Zero is a duration.
func (d *Duration) Or(def time.Duration) time.Duration {
	if d == nil {
		return def
	}
	return time.Duration(*d)
}

// MaxName is how long a name may be: a DNS label, because names end up in Consul service names and host names.
const MaxName = 63

// NamePattern is the form of a name, as a regular expression of Go and of ECMAScript.
const NamePattern = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`

var dnsLabel = regexp.MustCompile(NamePattern)

// NameAllowed says in words what CheckName accepts.
var NameAllowed = fmt.Sprintf("1 to %d lower-case letters, digits and '-', starting and ending with a letter or digit", MaxName)

// CheckName records a mistake unless the value is a DNS label.
func (es *Errors) CheckName(path, value string) {
	switch {
	case value == "":
		es.Missing(path, NameAllowed)
	case len(value) > MaxName || !dnsLabel.MatchString(value):
		es.Add(path, value, NameAllowed)
	}
}
