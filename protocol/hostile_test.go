package protocol

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// attempt is a message that must be refused, and how. schema tells that the
// JSON Schema refuses it, too.
type attempt struct {
	text, code, field string
	id                int64
	of                string
	schema            bool
}

func hostile() map[string]attempt {
	launch := func(member string) string { return `{"type":"launch","id":7,"argv":["true"],` + member + `}` }
	long := strings.Repeat("x", MaxString+1)
	deep := func(n int) string { return strings.Repeat(`[`, n) + strings.Repeat(`]`, n) }
	return map[string]attempt{
		// Not JSON, or not one object.
		"nothing":                        {text: "", code: "bad-json"},
		"white space":                    {text: " \n", code: "bad-json"},
		"null":                           {text: "null", code: "bad-json"},
		"an array":                       {text: `[{"type":"ping","id":1}]`, code: "bad-json"},
		"a string":                       {text: `"ping"`, code: "bad-json"},
		"a byte order mark":              {text: "\ufeff" + `{"type":"ping","id":1}`, code: "bad-json"},
		"UTF-16":                         {text: "{\x00\"\x00", code: "bad-json"},
		"trailing bytes":                 {text: `{"type":"ping","id":1}x`, code: "bad-json", id: 1, of: "ping"},
		"two messages":                   {text: `{"type":"ping","id":1}{"type":"ping","id":2}`, code: "bad-json", id: 1, of: "ping"},
		"a trailing NUL":                 {text: `{"type":"ping","id":1}` + "\x00", code: "bad-json", id: 1, of: "ping"},
		"a trailing comma":               {text: `{"type":"ping","id":1,}`, code: "bad-json", id: 1, of: "ping"},
		"a trailing comma in an array":   {text: launch(`"readable":["/a",]`), code: "bad-json", field: "readable[1]", id: 7, of: "launch"},
		"a comment":                      {text: `{"type":"ping",/* */"id":1}`, code: "bad-json", of: "ping"},
		"a line comment":                 {text: "{\"type\":\"ping\",//\n\"id\":1}", code: "bad-json", of: "ping"},
		"single quotes":                  {text: `{'type':'ping','id':1}`, code: "bad-json"},
		"a bare name":                    {text: `{type:"ping","id":1}`, code: "bad-json"},
		"cut off":                        {text: `{"type":"ping","id":1`, code: "bad-json", id: 1, of: "ping"},
		"cut off in a string":            {text: `{"type":"ping`, code: "bad-json", field: "type"},
		"cut off in an escape":           {text: `{"type":"\u00`, code: "bad-json", field: "type"},
		"cut off behind a backslash":     {text: `{"type":"\`, code: "bad-json", field: "type"},
		"cut off behind a name":          {text: `{"type"`, code: "bad-json"},
		"cut off in a number":            {text: `{"id":-`, code: "bad-json", field: "id"},
		"a control character":            {text: "{\"type\":\"pi\nng\",\"id\":1}", code: "bad-json", field: "type"},
		"a raw NUL":                      {text: "{\"type\":\"pi\x00ng\",\"id\":1}", code: "bad-json", field: "type"},
		"an unknown escape":              {text: `{"type":"\x41","id":1}`, code: "bad-json", field: "type"},
		"a bad hexadecimal digit":        {text: `{"type":"\u00g0","id":1}`, code: "bad-json", field: "type"},
		"NaN":                            {text: `{"type":"ping","id":NaN}`, code: "bad-json", field: "id", of: "ping"},
		"Infinity":                       {text: `{"type":"ping","id":Infinity}`, code: "bad-json", field: "id", of: "ping"},
		"a leading zero":                 {text: `{"type":"ping","id":01}`, code: "bad-json", id: 0, of: "ping"},
		"a leading plus":                 {text: `{"type":"ping","id":+1}`, code: "bad-json", field: "id", of: "ping"},
		"a hexadecimal number":           {text: `{"type":"ping","id":0x1}`, code: "bad-json", id: 0, of: "ping"},
		"a number that ends early":       {text: `{"type":"ping","id":1.}`, code: "bad-json", field: "id", of: "ping"},
		"an exponent that ends early":    {text: `{"type":"ping","id":1e}`, code: "bad-json", field: "id", of: "ping"},
		"True":                           {text: `{"type":"list","id":1,"ended":True}`, code: "bad-json", field: "ended", id: 1, of: "list"},
		"a missing colon":                {text: `{"type" "ping"}`, code: "bad-json"},
		"no-break space between members": {text: "{\"type\":\"ping\",\u00a0\"id\":1}", code: "bad-json", of: "ping"},

		// Strings that are no text.
		"bytes that are not UTF-8":      {text: launch("\"label\":\"\xff\""), code: "not-utf8", field: "label", id: 7, of: "launch"},
		"bytes that are not, in a name": {text: launch("\"\xff\":1"), code: "not-utf8", id: 7, of: "launch"},
		"an overlong slash":             {text: launch("\"cwd\":\"\xc0\xaf\""), code: "not-utf8", field: "cwd", id: 7, of: "launch"},
		"an encoded surrogate":          {text: launch("\"cwd\":\"\xed\xa0\x80\""), code: "not-utf8", field: "cwd", id: 7, of: "launch"},
		"beyond Unicode":                {text: launch("\"cwd\":\"\xf4\x90\x80\x80\""), code: "not-utf8", field: "cwd", id: 7, of: "launch"},
		"half a pair, high":             {text: launch(`"label":"\ud800"`), code: "not-utf8", field: "label", id: 7, of: "launch"},
		"half a pair, low":              {text: launch(`"label":"\udc00"`), code: "not-utf8", field: "label", id: 7, of: "launch"},
		"half a pair and a letter":      {text: launch(`"label":"\ud800a"`), code: "not-utf8", field: "label", id: 7, of: "launch"},
		"half a pair and an escape":     {text: launch(`"label":"\ud800\n"`), code: "not-utf8", field: "label", id: 7, of: "launch"},
		"half a pair twice":             {text: launch(`"label":"\ud800\ud800"`), code: "not-utf8", field: "label", id: 7, of: "launch"},
		"half a pair in a name":         {text: launch(`"\ud800":1`), code: "not-utf8", id: 7, of: "launch"},

		// Names.
		"a member twice":             {text: launch(`"cwd":"/a","cwd":"/b"`), code: "duplicate-field", field: "cwd", id: 7, of: "launch"},
		"a member twice, the same":   {text: launch(`"cwd":"/a","cwd":"/a"`), code: "duplicate-field", field: "cwd", id: 7, of: "launch"},
		"a member twice, by escape":  {text: launch(`"cwd":"/a","\u0063wd":"/b"`), code: "duplicate-field", field: "cwd", id: 7, of: "launch"},
		"the id twice":               {text: `{"type":"ping","id":1,"id":2}`, code: "duplicate-field", field: "id", of: "ping"},
		"the id twice, by escape":    {text: `{"type":"ping","id":1,"\u0069d":1}`, code: "duplicate-field", field: "id", of: "ping"},
		"the type twice":             {text: `{"type":"ping","type":"launch","id":1}`, code: "duplicate-field", field: "type"},
		"a nested member twice":      {text: launch(`"limits":{"pids":1,"pids":2}`), code: "duplicate-field", field: "limits.pids", id: 7, of: "launch"},
		"an unknown member twice":    {text: `{"type":"ping","id":1,"x":{"y":1,"y":2}}`, code: "duplicate-field", field: "x.y", id: 1, of: "ping"},
		"the 40th member twice":      {text: `{"type":"ping","id":1,` + manyMembers(40) + `,"m39":1}`, code: "duplicate-field", field: "m39", id: 1, of: "ping"},
		"base64 twice":               {text: launch(`"cwd":{"base64":"L2E=","base64":"L2I="}`), code: "duplicate-field", field: "cwd.base64", id: 7, of: "launch"},
		"an unknown member":          {text: launch(`"command":"x"`), code: "unknown-field", field: "command", id: 7, of: "launch", schema: true},
		"an empty name":              {text: launch(`"":1`), code: "unknown-field", id: 7, of: "launch", schema: true},
		"a nested unknown member":    {text: launch(`"limits":{"memory":1}`), code: "unknown-field", field: "limits.memory", id: 7, of: "launch", schema: true},
		"an unknown member of env":   {text: launch(`"env":[{"name":"A","value":"b","x":1}]`), code: "unknown-field", field: "env[0].x", id: 7, of: "launch", schema: true},
		"a type inside":              {text: launch(`"limits":{"type":"launch"}`), code: "unknown-field", field: "limits.type", id: 7, of: "launch", schema: true},
		"an unknown form of bytes":   {text: launch(`"cwd":{"hex":"2f"}`), code: "unknown-field", field: "cwd.hex", id: 7, of: "launch", schema: true},
		"ID":                         {text: `{"type":"ping","ID":1}`, code: "missing-field", field: "id", of: "ping", schema: true},
		"ID beside id":               {text: `{"type":"ping","id":1,"ID":2}`, code: "unknown-field", field: "ID", id: 1, of: "ping", schema: true},
		"Argv":                       {text: `{"type":"launch","id":7,"Argv":["true"]}`, code: "unknown-field", field: "Argv", id: 7, of: "launch", schema: true},
		"a Kelvin sign for k":        {text: launch("\"\u212aeep\":true"), code: "unknown-field", field: "\u212aeep", id: 7, of: "launch", schema: true},
		"Type":                       {text: `{"Type":"ping","id":1}`, code: "missing-field", field: "type", id: 1, schema: true},
		"PING":                       {text: `{"type":"PING","id":1}`, code: "unknown-type", field: "type", id: 1, of: "PING", schema: true},
		"a name that steers":         {text: launch(`"\u001b[2J":1`), code: "unknown-field", field: `"\x1b[2J"`, id: 7, of: "launch", schema: true},
		"a name that is long":        {text: launch(`"` + strings.Repeat("n", 1000) + `":1`), code: "unknown-field", field: strings.Repeat("n", 48) + "...", id: 7, of: "launch", schema: true},
		"a type that steers":         {text: `{"type":"\u001b[2J","id":1}`, code: "unknown-type", field: "type", id: 1, schema: true},
		"a type that is long":        {text: `{"type":"` + strings.Repeat("n", 1000) + `","id":1}`, code: "unknown-type", field: "type", id: 1, schema: true},
		"no type":                    {text: `{"id":1}`, code: "missing-field", field: "type", id: 1, schema: true},
		"an empty object":            {text: `{}`, code: "missing-field", field: "type", schema: true},
		"a type that is a number":    {text: `{"type":1,"id":1}`, code: "wrong-type", field: "type", id: 1, schema: true},
		"an answer":                  {text: `{"type":"pong","id":1}`, code: "unknown-type", field: "type", id: 1, of: "pong"},
		"an answer that means much":  {text: `{"type":"exit","id":1,"worker":"x","report":{}}`, code: "unknown-type", field: "type", id: 1, of: "exit"},
		"a daemon's hello":           {text: `{"type":"hello","version":1}`, code: "unknown-field", field: "version", of: "hello", schema: true},
		"a hello with a new member":  {text: `{"type":"hello","versions":[1],"client":{"name":"x","version":"1"},"token":"x"}`, code: "unknown-field", field: "token", of: "hello", schema: true},
		"a hello with an id":         {text: `{"type":"hello","id":1,"versions":[1],"client":{"name":"x","version":"1"}}`, code: "unknown-field", field: "id", id: 1, of: "hello", schema: true},
		"a hello without a version":  {text: `{"type":"hello","versions":[],"client":{"name":"x","version":"1"}}`, code: "bad-value", field: "versions", of: "hello", schema: true},
		"a hello with 65 versions":   {text: `{"type":"hello","versions":[` + strings.Repeat("1,", 64) + `1],"client":{"name":"x","version":"1"}}`, code: "too-many", field: "versions", of: "hello", schema: true},
		"a hello with a version 1.0": {text: `{"type":"hello","versions":["1.0"],"client":{"name":"x","version":"1"}}`, code: "wrong-type", field: "versions[0]", of: "hello", schema: true},

		// Integers.
		"no id":                       {text: `{"type":"ping"}`, code: "missing-field", field: "id", of: "ping", schema: true},
		"id 0":                        {text: `{"type":"ping","id":0}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"id -1":                       {text: `{"type":"ping","id":-1}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"id -0":                       {text: `{"type":"ping","id":-0}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"id 1.0":                      {text: `{"type":"ping","id":1.0}`, code: "bad-id", field: "id", of: "ping"},
		"id 1e3":                      {text: `{"type":"ping","id":1e3}`, code: "bad-id", field: "id", of: "ping"},
		"id 2^53":                     {text: `{"type":"ping","id":9007199254740992}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"id 2^64+1":                   {text: `{"type":"ping","id":18446744073709551617}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"id of a thousand digits":     {text: `{"type":"ping","id":` + strings.Repeat("1", 1000) + `}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"an id that is a string":      {text: `{"type":"ping","id":"1"}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"an id that is null":          {text: `{"type":"ping","id":null}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"an id that is an array":      {text: `{"type":"ping","id":[1]}`, code: "bad-id", field: "id", of: "ping", schema: true},
		"-0":                          {text: launch(`"output_window":-0`), code: "wrong-type", field: "output_window", id: 7, of: "launch"},
		"1.0":                         {text: launch(`"output_window":1.0`), code: "wrong-type", field: "output_window", id: 7, of: "launch"},
		"1e3":                         {text: launch(`"output_window":1e3`), code: "wrong-type", field: "output_window", id: 7, of: "launch"},
		"1E400":                       {text: launch(`"output_window":1E400`), code: "wrong-type", field: "output_window", id: 7, of: "launch"},
		"2^53":                        {text: launch(`"limits":{"memory_bytes":9007199254740992}`), code: "out-of-range", field: "limits.memory_bytes", id: 7, of: "launch", schema: true},
		"-2^63-1":                     {text: launch(`"limits":{"memory_bytes":-9223372036854775809}`), code: "out-of-range", field: "limits.memory_bytes", id: 7, of: "launch", schema: true},
		"a limit of 0":                {text: launch(`"limits":{"memory_bytes":0}`), code: "out-of-range", field: "limits.memory_bytes", id: 7, of: "launch", schema: true},
		"a window that is too large":  {text: launch(`"output_window":16777217`), code: "out-of-range", field: "output_window", id: 7, of: "launch", schema: true},
		"an offset below 0":           {text: `{"type":"stdin","id":1,"offset":-1,"data":"YQ=="}`, code: "out-of-range", field: "offset", id: 1, of: "stdin", schema: true},
		"an offset at the end":        {text: `{"type":"stdin","id":1,"offset":9007199254740991,"data":"YQ=="}`, code: "out-of-range", field: "offset", id: 1, of: "stdin"},
		"no credit":                   {text: `{"type":"credit","id":1,"stream":"stdout","bytes":0}`, code: "out-of-range", field: "bytes", id: 1, of: "credit", schema: true},
		"a terminal of no lines":      {text: launch(`"tty":{"rows":0,"cols":80}`), code: "out-of-range", field: "tty.rows", id: 7, of: "launch", schema: true},
		"a terminal beyond 16 bits":   {text: launch(`"tty":{"rows":65536,"cols":80}`), code: "out-of-range", field: "tty.rows", id: 7, of: "launch", schema: true},
		"descriptor 2":                {text: launch(`"descriptors":[{"to":2}]`), code: "out-of-range", field: "descriptors[0].to", id: 7, of: "launch", schema: true},
		"a grace of a thousand years": {text: `{"type":"cancel","id":1,"launch":2,"grace_ms":31536000000000}`, code: "out-of-range", field: "grace_ms", id: 1, of: "cancel", schema: true},

		// Types.
		"argv as a string":        {text: `{"type":"launch","id":7,"argv":"rm -rf /"}`, code: "wrong-type", field: "argv", id: 7, of: "launch", schema: true},
		"argv as an object":       {text: `{"type":"launch","id":7,"argv":{"0":"true"}}`, code: "wrong-type", field: "argv", id: 7, of: "launch", schema: true},
		"a number in argv":        {text: `{"type":"launch","id":7,"argv":["true",1]}`, code: "wrong-type", field: "argv[1]", id: 7, of: "launch", schema: true},
		"null in argv":            {text: `{"type":"launch","id":7,"argv":["true",null]}`, code: "wrong-type", field: "argv[1]", id: 7, of: "launch", schema: true},
		"an array in argv":        {text: `{"type":"launch","id":7,"argv":[["true"]]}`, code: "wrong-type", field: "argv[0]", id: 7, of: "launch", schema: true},
		"null for a text":         {text: launch(`"mode":null`), code: "wrong-type", field: "mode", id: 7, of: "launch", schema: true},
		"null for an object":      {text: launch(`"limits":null`), code: "wrong-type", field: "limits", id: 7, of: "launch", schema: true},
		"null for an array":       {text: launch(`"readable":null`), code: "wrong-type", field: "readable", id: 7, of: "launch", schema: true},
		"null for a boolean":      {text: launch(`"keep":null`), code: "wrong-type", field: "keep", id: 7, of: "launch", schema: true},
		"1 for a boolean":         {text: launch(`"keep":1`), code: "wrong-type", field: "keep", id: 7, of: "launch", schema: true},
		"a string for a boolean":  {text: launch(`"keep":"true"`), code: "wrong-type", field: "keep", id: 7, of: "launch", schema: true},
		"a string for an integer": {text: launch(`"output_window":"1"`), code: "wrong-type", field: "output_window", id: 7, of: "launch", schema: true},
		"bytes where text is":     {text: launch(`"label":{"base64":"YQ=="}`), code: "wrong-type", field: "label", id: 7, of: "launch", schema: true},
		"a number as base64":      {text: launch(`"cwd":{"base64":1}`), code: "wrong-type", field: "cwd.base64", id: 7, of: "launch", schema: true},
		"an empty form of bytes":  {text: launch(`"cwd":{}`), code: "missing-field", field: "cwd.base64", id: 7, of: "launch", schema: true},
		"env as an object":        {text: launch(`"env":{"A":"b"}`), code: "wrong-type", field: "env", id: 7, of: "launch", schema: true},
		"env as K=V":              {text: launch(`"env":["A=b"]`), code: "wrong-type", field: "env[0]", id: 7, of: "launch", schema: true},

		// Base64.
		"base64 without padding":      {text: launch(`"cwd":{"base64":"YQ"}`), code: "bad-value", field: "cwd.base64", id: 7, of: "launch", schema: true},
		"base64 of the URL alphabet":  {text: launch(`"cwd":{"base64":"_-8="}`), code: "bad-value", field: "cwd.base64", id: 7, of: "launch", schema: true},
		"base64 with a line end":      {text: launch(`"cwd":{"base64":"YW\nFh"}`), code: "bad-value", field: "cwd.base64", id: 7, of: "launch"},
		"base64 with bits of nothing": {text: launch(`"cwd":{"base64":"YR=="}`), code: "bad-value", field: "cwd.base64", id: 7, of: "launch"},
		"data that is no base64":      {text: `{"type":"stdin","id":1,"offset":0,"data":"hello"}`, code: "bad-value", field: "data", id: 1, of: "stdin", schema: true},

		// NUL.
		"NUL in argv":                {text: `{"type":"launch","id":7,"argv":["true","a\u0000b"]}`, code: "nul", field: "argv[1]", id: 7, of: "launch", schema: true},
		"NUL in argv, in base64":     {text: `{"type":"launch","id":7,"argv":["true",{"base64":"AA=="}]}`, code: "nul", field: "argv[1]", id: 7, of: "launch"},
		"NUL in the command's name":  {text: `{"type":"launch","id":7,"argv":["true\u0000"]}`, code: "nul", field: "argv[0]", id: 7, of: "launch", schema: true},
		"NUL in a path":              {text: launch(`"writable":["/tmp/\u0000/etc"]`), code: "nul", field: "writable[0]", id: 7, of: "launch", schema: true},
		"NUL in a directory":         {text: launch(`"dir":"\u0000"`), code: "nul", field: "dir", id: 7, of: "launch", schema: true},
		"NUL in a variable's name":   {text: launch(`"env":[{"name":"A\u0000","value":""}]`), code: "nul", field: "env[0].name", id: 7, of: "launch", schema: true},
		"NUL in a variable's value":  {text: launch(`"env":[{"name":"A","value":"\u0000"}]`), code: "nul", field: "env[0].value", id: 7, of: "launch", schema: true},
		"NUL in a host's variable":   {text: launch(`"host_env":[{"name":"A","value":"\u0000"}]`), code: "nul", field: "host_env[0].value", id: 7, of: "launch", schema: true},
		"NUL in a profile's name":    {text: launch(`"profiles":["go\u0000"]`), code: "nul", field: "profiles[0]", id: 7, of: "launch", schema: true},
		"NUL in a label":             {text: launch(`"label":"\u0000"`), code: "nul", field: "label", id: 7, of: "launch", schema: true},
		"NUL in a capability's name": {text: `{"type":"hello","versions":[1],"client":{"name":"x","version":"1"},"capabilities":["\u0000"]}`, code: "nul", field: "capabilities[0]", of: "hello", schema: true},

		// Values that mean nothing.
		"no command":                     {text: `{"type":"launch","id":7}`, code: "missing-field", field: "argv", id: 7, of: "launch", schema: true},
		"an empty argv":                  {text: `{"type":"launch","id":7,"argv":[]}`, code: "missing-field", field: "argv", id: 7, of: "launch", schema: true},
		"an empty command":               {text: `{"type":"launch","id":7,"argv":[""]}`, code: "bad-value", field: "argv[0]", id: 7, of: "launch"},
		"a variable without a name":      {text: launch(`"env":[{"name":"","value":"x"}]`), code: "bad-value", field: "env[0].name", id: 7, of: "launch", schema: true},
		"a variable whose name has a =":  {text: launch(`"env":[{"name":"A=B","value":"x"}]`), code: "bad-value", field: "env[0].name", id: 7, of: "launch"},
		"a variable without a value":     {text: launch(`"env":[{"name":"A"}]`), code: "missing-field", field: "env[0].value", id: 7, of: "launch", schema: true},
		"an empty path":                  {text: launch(`"writable":[""]`), code: "bad-value", field: "writable[0]", id: 7, of: "launch", schema: true},
		"an unknown stream's word":       {text: launch(`"stdio":{"stdin":"inherit"}`), code: "bad-value", field: "stdio.stdin", id: 7, of: "launch", schema: true},
		"a terminal and streams":         {text: launch(`"tty":{"rows":24,"cols":80},"stdio":{}`), code: "bad-value", field: "stdio", id: 7, of: "launch", schema: true},
		"two descriptors of one number":  {text: launch(`"descriptors":[{"to":3},{"to":3}]`), code: "bad-value", field: "descriptors[1].to", id: 7, of: "launch"},
		"65 descriptors":                 {text: launch(`"descriptors":[` + manyDescriptors(65) + `]`), code: "too-many", field: "descriptors", id: 7, of: "launch", schema: true},
		"64 descriptors and stdin":       {text: launch(`"stdio":{"stdin":"descriptor"},"descriptors":[` + manyDescriptors(64) + `]`), code: "too-many-descriptors", field: "descriptors", id: 7, of: "launch"},
		"an unknown signal":              {text: `{"type":"signal","id":1,"launch":2,"signal":"SIGSEGVV"}`, code: "bad-value", field: "signal", id: 1, of: "signal", schema: true},
		"a signal by number":             {text: `{"type":"signal","id":1,"launch":2,"signal":9}`, code: "wrong-type", field: "signal", id: 1, of: "signal", schema: true},
		"a signal to nobody":             {text: `{"type":"signal","id":1,"signal":"SIGHUP"}`, code: "bad-value", field: "worker", id: 1, of: "signal", schema: true},
		"cancel of nothing":              {text: `{"type":"cancel","id":1}`, code: "bad-value", field: "worker", id: 1, of: "cancel", schema: true},
		"cancel of two":                  {text: `{"type":"cancel","id":1,"launch":2,"worker":"x"}`, code: "bad-value", field: "worker", id: 1, of: "cancel", schema: true},
		"stdin without data and end":     {text: `{"type":"stdin","id":1,"offset":0,"data":""}`, code: "bad-value", field: "data", id: 1, of: "stdin"},
		"an empty subscription":          {text: `{"type":"subscribe","id":1,"events":[]}`, code: "bad-value", field: "events", id: 1, of: "subscribe", schema: true},
		"credit of an unknown stream":    {text: `{"type":"credit","id":1,"stream":"fd3","bytes":1}`, code: "bad-value", field: "stream", id: 1, of: "credit", schema: true},
		"credit of one's own stdin":      {text: `{"type":"credit","id":1,"stream":"stdin","bytes":1}`, code: "bad-value", field: "stream", id: 1, of: "credit"},
		"a worker's name that is a path": {text: `{"type":"inspect","id":1,"worker":"` + strings.Repeat("../", 30) + `"}`, code: "too-long", field: "worker", id: 1, of: "inspect", schema: true},

		// Too much.
		"an argument that is too long":  {text: `{"type":"launch","id":7,"argv":["true","` + long + `"]}`, code: "too-long", field: "argv[1]", id: 7, of: "launch", schema: true},
		"base64 that is too long":       {text: launch(`"cwd":{"base64":"` + base64.StdEncoding.EncodeToString([]byte(long)) + `"}`), code: "too-long", field: "cwd.base64", id: 7, of: "launch"},
		"a label that is too long":      {text: launch(`"label":"` + strings.Repeat("x", 257) + `"`), code: "too-long", field: "label", id: 7, of: "launch", schema: true},
		"a label that is, in bytes":     {text: launch(`"label":"` + strings.Repeat("\u00fc", 129) + `"`), code: "too-long", field: "label", id: 7, of: "launch"},
		"data that is too long":         {text: `{"type":"stdin","id":1,"offset":0,"data":"` + base64.StdEncoding.EncodeToString(make([]byte, MaxChunk+1)) + `"}`, code: "too-long", field: "data", id: 1, of: "stdin"},
		"a string that is far too long": {text: launch(`"x":"` + strings.Repeat("x", maxJSONString+1) + `"`), code: "too-long", field: "x", id: 7, of: "launch", schema: true},
		"a name that is far too long":   {text: launch(`"` + strings.Repeat("x", maxJSONString+1) + `":1`), code: "too-long", id: 7, of: "launch", schema: true},
		"a huge array":                  {text: `{"type":"launch","id":7,"argv":["true"` + strings.Repeat(`,""`, MaxItems) + `]}`, code: "too-many", field: "argv", id: 7, of: "launch", schema: true},
		"a huge array of numbers":       {text: launch(`"x":[0` + strings.Repeat(",0", MaxItems) + `]`), code: "too-many", field: "x", id: 7, of: "launch", schema: true},
		"a huge object":                 {text: `{"type":"ping","id":1,` + manyMembers(MaxItems-1) + `}`, code: "too-many", id: 1, of: "ping", schema: true},
		"arrays in arrays":              {text: launch(`"x":` + deep(16)), code: "too-deep", field: "x" + strings.Repeat("[0]", 15), id: 7, of: "launch", schema: true},
		"arrays in arrays, 400000":      {text: launch(`"x":` + deep(400000)), code: "too-deep", field: "x" + strings.Repeat("[0]", 15), id: 7, of: "launch"},
		"objects in objects":            {text: launch(`"x":` + strings.Repeat(`{"x":`, 16) + "1" + strings.Repeat("}", 16)), code: "too-deep", field: "x" + strings.Repeat(".x", 15), id: 7, of: "launch", schema: true},
		"arrays that do not end":        {text: launch(`"x":` + strings.Repeat("[", 400000)), code: "too-deep", field: "x" + strings.Repeat("[0]", 15), id: 7, of: "launch"},
	}
}

func manyMembers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"m%d":1`, i)
	}
	return b.String()[1:]
}

func manyDescriptors(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"to":%d}`, i+3)
	}
	return b.String()[1:]
}

func TestHostile(t *testing.T) {
	seen := map[Code]bool{}
	for name, h := range hostile() {
		t.Run(name, func(t *testing.T) {
			m, err := ParseRequest([]byte(h.text))
			var e *Error
			if !errors.As(err, &e) || m != nil {
				t.Fatalf("it is understood: %+v", m)
			}
			if string(e.Code) != h.code || e.Field != h.field || e.ID != h.id || e.Of != h.of {
				t.Errorf("got  %s, field %q, id %d, of %q\nwant %s, field %q, id %d, of %q", e.Code, e.Field, e.ID, e.Of, h.code, h.field, h.id, h.of)
			}
			if e.Fatal != (e.Code == BadJSON) {
				t.Errorf("%s is fatal: %v", e.Code, e.Fatal)
			}
			answer, err := Encode(e) // whatever was in the message, its answer can be sent
			if err != nil || !json.Valid(answer) || len(answer) > 1000 {
				t.Errorf("%v: %.2000s", err, answer)
			}
			seen[e.Code] = true
		})
	}
	for _, c := range []Code{BadJSON, NotUTF8, DuplicateField, TooDeep, TooLong, TooMany, UnknownType, UnknownField, MissingField, WrongType, OutOfRange, BadValue, NUL, BadID, TooManyDescriptors} {
		if !seen[c] {
			t.Errorf("nothing was refused with %s", c)
		}
	}
}

// TestAtTheLimit: what is exactly as much as may be is understood.
func TestAtTheLimit(t *testing.T) {
	arg := strings.Repeat("x", MaxString)
	for name, text := range map[string]string{
		"an argument":             `{"type":"launch","id":7,"argv":["` + arg + `"]}`,
		"an argument by escapes":  `{"type":"launch","id":7,"argv":["` + strings.Repeat(`\u0078`, MaxString) + `"]}`,
		"an argument in base64":   `{"type":"launch","id":7,"argv":[{"base64":"` + base64.StdEncoding.EncodeToString([]byte(arg)) + `"}]}`,
		"argv":                    `{"type":"launch","id":7,"argv":["x"` + strings.Repeat(`,""`, MaxItems-1) + `]}`,
		"data":                    `{"type":"stdin","id":1,"offset":0,"data":"` + base64.StdEncoding.EncodeToString(make([]byte, MaxChunk)) + `"}`,
		"an id":                   `{"type":"ping","id":9007199254740991}`,
		"descriptors":             `{"type":"launch","id":7,"argv":["x"],"descriptors":[` + manyDescriptors(64) + `]}`,
		"an empty list of paths":  `{"type":"launch","id":7,"argv":["x"],"readable":[]}`,
		"the defaults by name":    `{"type":"launch","id":7,"argv":["x"],"keep":false,"stdio":{},"limits":{},"label":""}`,
		"all white space of JSON": " \t\r\n{ \"type\" : \"ping\" ,\n\"id\" :\t1 }\r\n",
		"a pair of surrogates":    `{"type":"launch","id":7,"argv":["\ud83d\ude00"]}`,
		"an escaped name":         `{"\u0074ype":"\u0070ing","id":1}`,
		"a line separator":        "{\"type\":\"launch\",\"id\":7,\"argv\":[\"\u2028\"]}",
		"the type last":           `{"id":1,"type":"ping"}`,
	} {
		if _, err := ParseRequest([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := ParseRequest([]byte(`{"type":"launch","id":7,"argv":["\ud83d\ude00\u0041\/\b\f\n\r\t\"\\\u007f",{"base64":"YQ=="}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.(*Launch).Argv; got[0] != "\U0001F600A/\b\f\n\r\t\"\\\x7f" || got[1] != "a" {
		t.Errorf("%q", got)
	}
	deep := `{"type":"planned","id":1,"plan":{"x":` + strings.Repeat("[", 14) + strings.Repeat("]", 14) + `}}`
	if _, err := ParseAnswer([]byte(deep)); err != nil {
		t.Error(err)
	}
	if _, err := ParseAnswer([]byte(strings.Replace(deep, "[]", "[[]]", 1))); err == nil {
		t.Error("17 levels are understood")
	}
}

// TestEncodeRefuses: what a reader would refuse is not written.
func TestEncodeRefuses(t *testing.T) {
	for name, m := range map[string]Message{
		"nil":                   nil,
		"a nil pointer":         (*Ping)(nil),
		"what is no message":    &Unknown{Name: "x"},
		"no id":                 &Ping{},
		"an id beyond 2^53":     &Ping{ID: 1 << 53},
		"NUL":                   &Launch{ID: 1, Argv: []Bytes{"a\x00"}},
		"no command":            &Launch{ID: 1},
		"a text of bytes":       &Launch{ID: 1, Argv: []Bytes{"a"}, Label: "\xff"},
		"a long chunk":          &Output{ID: 1, Stream: "stdout", Data: make(Data, MaxChunk+1)},
		"an empty chunk":        &Output{ID: 1, Stream: "stdout"},
		"no report":             &Exit{ID: 1, Worker: "w"},
		"a report that is none": &Exit{ID: 1, Worker: "w", Report: Object("[]")},
		"a report and more":     &Exit{ID: 1, Worker: "w", Report: Object("{}{}")},
		"a report with a twin":  &Exit{ID: 1, Worker: "w", Report: Object(`{"a":1,"a":2}`)},
		"an unknown stream":     &Credit{ID: 1, Stream: "x", Bytes: 1},
		"too many versions":     &ClientHello{Versions: make([]int64, 65), Client: Peer{Name: "x"}},
		"no versions":           &ClientHello{Client: Peer{Name: "x"}},
	} {
		text, err := Encode(m)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: written as %s", name, text)
		}
	}
}

// TestCompact: white space goes, but for that in strings.
func TestCompact(t *testing.T) {
	m, err := ParseAnswer([]byte(`{"type":"planned","id":1,"plan": { "a b" : "x \" y \\" ,
		"c" : [ 1 , " \\\" " , { } ] } }`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(m.(*Planned).Plan), `{"a b":"x \" y \\","c":[1," \\\" ",{}]}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{"plain \u00fc": "plain \u00fc", "a\x00b\xff": "a\ufffdb\ufffd"} {
		if got := Text(in); got != want {
			t.Errorf("%q", got)
		}
	}
	if got := Text(strings.Repeat("\u00fc", 5000)); len(got) > 4200 || !strings.HasSuffix(got, "\u00fc...") {
		t.Errorf("%d bytes", len(got))
	}
}
