package field

import (
	"fmt"
	"strings"
)

// LabelAllowed says in words what IsLabel accepts.
const LabelAllowed = "labels in Kubernetes' syntax: an optional DNS prefix and '/', then up to 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"

// maxLabelPrefix is how long the part of a label's key before the slash may be: a DNS name.
const maxLabelPrefix = 253

// IsLabel reports whether key and value are a label in Kubernetes' syntax. Its own package says the same in many times
// the time, and records of thousands of pods and nodes are judged at once.
func IsLabel(key, value string) bool {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		prefix, name = "", key
	}
	return (!prefixed || isDomain(prefix)) && name != "" && isLabelText(name) && isLabelText(value)
}

// isDomain reports whether a text is DNS labels, separated by dots.
func isDomain(text string) bool {
	if len(text) > maxLabelPrefix {
		return false
	}
	for label := range strings.SplitSeq(text, ".") {
		if !isDomainPart(label) {
			return false
		}
	}
	return true
}

// isDomainPart is IsName without a bound of its own.
func isDomainPart(label string) bool {
	if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for i := range len(label) {
		if c := label[i]; c != '-' && !isLowerOrDigit(c) {
			return false
		}
	}
	return true
}

// isLabelText reports whether a text may be a label's value.
func isLabelText(text string) bool {
	if text == "" {
		return true
	}
	if len(text) > MaxName || !isAlphanumeric(text[0]) || !isAlphanumeric(text[len(text)-1]) {
		return false
	}
	for i := range len(text) {
		if c := text[i]; c != '-' && c != '_' && c != '.' && !isAlphanumeric(c) {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// CheckLabels is manifest.ValidateLabels for a stored record, which may have as many labels as several documents give
// it.
func (es *Errors) CheckLabels(path string, set map[string]string, most int) {
	if len(set) > most {
		es.Add(path, Text(fmt.Sprintf("%d entries", len(set))), fmt.Sprintf("0 to %d entries", most))
		return
	}
	for key, value := range set {
		if !IsLabel(key, value) {
			es.Add(path+"."+key, key+"="+value, LabelAllowed)
		}
	}
}

// CheckPorts records ports of a stored record that no manifest could have, by their names. One without a number yet has
// zero.
func (es *Errors) CheckPorts(path string, ports map[string]int) {
	if len(ports) > MaxPorts {
		es.Add(path, Text(fmt.Sprintf("%d entries", len(ports))), fmt.Sprintf("0 to %d entries", MaxPorts))
		return
	}
	for name, port := range ports {
		if !IsName(name) {
			es.Add(path, name, "names of ports: "+NameAllowed)
		} else if port < 0 || port > MaxPort {
			es.Add(path+"."+name, port, fmt.Sprintf("a whole number from 0 to %d", MaxPort))
		}
	}
}

// IsDigest reports whether a text is a SHA-256 in lower-case hex, as artifacts and manifests have it.
func IsDigest(text string) bool {
	if len(text) != DigestLength {
		return false
	}
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
