// Package document reads documents that people write, in YAML or JSON, strictly. An error names the field or the line
// (P9).
package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// MaxBytes bounds the size of a document.
const MaxBytes = 1 << 20

// ToJSON converts one document of strict YAML into JSON. It returns a JSON document unchanged, because a conversion
// could change numbers. allowed describes the expected document in errors, which are field.Errors.
func ToJSON(data []byte, allowed string) ([]byte, error) {
	docs, err := documents(data, allowed)
	if err != nil {
		return nil, err
	}
	if len(docs) > 1 {
		var errs field.Errors
		errs.Add("document", field.Text(fmt.Sprintf("a file with %d documents", len(docs))), allowed)
		return nil, errs
	}
	return convert(docs[0])
}

// AllToJSON is ToJSON for a file with one or more documents.
func AllToJSON(data []byte, allowed string) ([][]byte, error) {
	docs, err := documents(data, allowed)
	for i := 0; i < len(docs) && err == nil; i++ {
		docs[i], err = convert(docs[i])
	}
	return docs, err
}

func documents(data []byte, allowed string) ([][]byte, error) {
	var errs field.Errors
	if len(data) > MaxBytes {
		errs.Add("document", field.Text("a size of more than "+fmt.Sprint(MaxBytes)+" bytes"),
			fmt.Sprintf("at most %d bytes", MaxBytes))
		return nil, errs
	}
	docs := split(data)
	if len(docs) == 0 {
		errs.Missing("document", allowed)
	}
	return docs, errs.Err()
}

func convert(doc []byte) ([]byte, error) {
	if json.Valid(doc) {
		return doc, nil
	}
	converted, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, explain(err)
	}
	return converted, nil
}

// split returns the documents of a YAML stream, except those that contain only comments. (The YAML library would ignore
// all documents but the first.) Each document gets as many empty lines in front as the file has lines before it, so
// that line numbers in errors are right.
func split(data []byte) [][]byte {
	var docs [][]byte
	line, start := 0, 0
	var doc []byte
	flush := func() {
		if holdsAnything(doc) {
			docs = append(docs, append(bytes.Repeat([]byte("\n"), start), doc...))
		}
	}
	for text := range bytes.Lines(data) {
		if marker, rest := cutMarker(text); marker {
			flush()
			doc, start, text = nil, line, rest
		}
		doc = append(doc, text...)
		line++
	}
	flush()
	return docs
}

// cutMarker returns the text that follows "---" or "..." on the line. Source:
// https://yaml.org/spec/1.1/#document%20boundary%20marker/
func cutMarker(line []byte) (marker bool, rest []byte) {
	if rest, marker = bytes.CutPrefix(line, []byte("---")); !marker {
		rest, marker = bytes.CutPrefix(line, []byte("..."))
	}
	return marker && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0), rest
}

// holdsAnything reports whether text has a line that is neither empty, nor a comment, nor a YAML directive.
func holdsAnything(text []byte) bool {
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

func explain(err error) error {
	var errs field.Errors
	repeated := regexp.MustCompile(`line (\d+): key "?(.*?)"? already set in map`)
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
	for _, m := range repeated.FindAllStringSubmatch(text, -1) {
		errs.Add(m[2], field.Text("a second time (line "+m[1]+")"), "each key once")
	}
	if errs == nil {
		errs.Add("document", field.Text("this text"),
			fmt.Sprintf("YAML or JSON (%s)", strings.ReplaceAll(text, "\n", " ")))
	}
	return errs
}
