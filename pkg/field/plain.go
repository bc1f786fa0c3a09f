package field

// Plain reports whether a text is the same in JSON.
func Plain(s string) bool {
	for i := range len(s) {
		if escaped[s[i]] {
			return false
		}
	}
	return true
}

// escaped has the bytes that encoding/json may escape.
var escaped = func() (is [256]bool) {
	for b := range is {
		is[b] = b < ' ' || b >= 0x7f || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&'
	}
	return is
}()
