package integration

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxWords   = 50_000
	maxColumns = 120
)

// The lines of dashes and bars in tables are not words.
var wordOf = regexp.MustCompile(`\S*[\pL\pN]\S*`)

var generated = regexp.MustCompile(`(?s)<!-- make .*?<!-- end -->`)

// written calls visit with each page of docs, without the parts that programs write.
func written(t *testing.T, visit func(path, text string)) {
	t.Helper()
	pages(t, func(path, text string) {
		if !strings.HasPrefix(path, filepath.Join("docs", "reference")) {
			visit(path, generated.ReplaceAllStringFunc(text, func(part string) string {
				return strings.Repeat("\n", strings.Count(part, "\n")) // so that lines keep their numbers
			}))
		}
	})
}

// The pages of docs have no more words than a person can be expected to read.
func TestDocsAreShort(t *testing.T) {
	t.Parallel()
	total := 0
	written(t, func(path, text string) {
		words := len(wordOf.FindAllString(text, -1))
		total += words
		t.Logf("%6d words in %s", words, path)
	})
	if total > maxWords {
		t.Errorf("docs besides docs/reference have %d words, at most %d are allowed", total, maxWords)
	}
}

// The lines of docs fit into a window of usual width.
func TestDocsHaveShortLines(t *testing.T) {
	t.Parallel()
	var long []string
	written(t, func(path, text string) {
		for _, number := range longLines(text) {
			long = append(long, path+":"+number)
		}
	})
	if len(long) > 0 {
		t.Errorf("docs have %d lines of more than %d columns:\n%s", len(long), maxColumns, strings.Join(long, "\n"))
	}
}

var linkTarget = regexp.MustCompile(`\]\([^)]*\)|https?://\S+`)

// longLines returns the numbers of the lines that are too long. Tables, addresses of links and text between fences
// cannot be wrapped, so they do not count.
func longLines(text string) (numbers []string) {
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		switch start := strings.TrimSpace(line); {
		case strings.HasPrefix(start, "```"):
			fenced = !fenced
		case !fenced && !strings.HasPrefix(start, "|") &&
			utf8.RuneCountInString(linkTarget.ReplaceAllString(line, "]")) > maxColumns:
			numbers = append(numbers, strconv.Itoa(i+1))
		}
	}
	return numbers
}

func TestLongLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxColumns+1)
	text := strings.Join([]string{
		long, "| " + long + " |", "```", long, "```", "See [it](" + long + ").", "https://example.com/" + long,
		long[1:], strings.Repeat("é", maxColumns), "- " + long,
	}, "\n")
	if got, want := longLines(text), []string{"1", "10"}; !slices.Equal(got, want) {
		t.Errorf("long lines are %v, want %v", got, want)
	}
}
