package field

import (
	"fmt"
	"strings"
)

// LabelAllowed describes what IsLabel accepts.
const LabelAllowed = "labels in Kubernetes' syntax: an optional DNS prefix and '/', then up to 63 letters, digits, " +
	"'-', '_' and '.', starting and ending with a letter or digit"

// maxLabelPrefix bounds the part of a key before the slash.
const maxLabelPrefix = 253

// IsLabel does not use Kubernetes' package, which takes many times as long for thousands of records.
func IsLabel(key, value string) bool {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		prefix, name = "", key
	}
	return (!prefixed || isDomain(prefix)) && name != "" && isLabelText(name) && isLabelText(value)
}

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

// isDomainPart is like IsName, but without the bound on the length.
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

// CheckLabels checks a stored record. Its labels may come from several documents, so the caller bounds their number.
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

// CheckPorts adds a mistake for each port that no manifest can have. A port without a number is zero.
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

// IsDigest reports whether a text is a SHA-256 in lower-case hex.
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
