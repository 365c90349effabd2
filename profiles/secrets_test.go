package profiles

import (
	"strings"
	"testing"

	"sandboxd/policy"
)

func TestScanSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"[user]\n\tname = A Token\n\temail = a@b.c\n\tsigningkey = ABC\n[core]\n\taskPass = x\n[credential]\n\thelper = store\n": "",
		"[url \"ssh://git@github.com/\"]\n\tinsteadOf = https://github.com/\n":                                                   "",
		"[url \"https://u:sesame@h/\"]\n\tinsteadOf = https://h/\n":                                                              "line 1, an address with a password",
		"[http \"https://h\"]\n  extraHeader = Authorization: Basic sesame\n":                                                    "line 2, key extraHeader",
		"[http] extraheader = sesame":                                                      "line 1, key extraheader",
		"[credential]\n helper = \"!f() { echo password=sesame; }; f\"\n":                  "line 2, key password",
		"[sendemail]\n\tsmtpPass = sesame\n":                                               "line 2, key smtpPass",
		"password =\npassword = \"\"\n# token = sesame\n":                                  "",
		"# https://u:sesame@h/":                                                            "line 1, an address with a password",
		"https://sesamesesamesesamesesame@h/":                                              "line 1, an address with a password",
		"https://user@h/x:y@z":                                                             "",
		"GOPROXY=https://proxy.corp,direct\nGOFLAGS=-mod=mod":                              "",
		"GOPROXY=direct,https://u:sesame@proxy.corp":                                       "line 1, an address with a password",
		"GOAUTH=git /x":                                                                    "line 1, key GOAUTH",
		"[registries.x]\nindex = \"https://h\"\ntoken = \"sesame\"":                        "line 3, key token",
		"registries = { x = { index = 'i', token = 'sesame' } }":                           "line 1, key token",
		"registries.x.token='sesame'":                                                      "line 1, key registries.x.token",
		"\"registries\".\"x\".\"token\"='sesame'":                                          "line 1, key token",
		"[registry]\nglobal-credential-providers = ['cargo:token']\n[http]\nproxy = 'h:1'": "",
		"[env]\nAWS_ACCESS_KEY_ID = 'sesame'":                                              "line 2, key AWS_ACCESS_KEY_ID",
		"[env]\nHTTPS_PROXY = 'http://h:1'\nGITHUB_TOKEN='sesame'":                         "line 3, key GITHUB_TOKEN",
		"[env]\nDATABASE_URL='postgres://u:sesame@h/'":                                     "line 2, an address with a password",
		"<settings>\n<!-- <password>x</password>\n -->\n<servers/>\n</settings>":           "",
		"<?xml?>\n<!--\n\n-->\n<s><password>sesame</password></s>":                         "line 5, key password",
		"<s>\n<password><!-- x -->sesame</password>":                                       "line 2, key password",
		"<s>\n<password></password><passphrase/>":                                          "",
		"<s token=\"sesame\"/>":                                                            "line 1, key token",
		"<s><!-- never ends <password>x</password>":                                        "",
		"<s><!----><password>sesame":                                                       "line 1, key password",
		strings.Repeat("x", 200) + "token = sesame":                                        "line 1, key " + strings.Repeat("x", 80) + "…",
	} {
		f, found := scanSecrets([]byte(text))
		got := ""
		if found {
			got = f.String()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestPresetsLookIntoSettings(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{"go", "cargo", "git"} {
		w.program("tools/bin/" + p)
	}
	w.env("PATH=" + w.root + "/tools/bin:/usr/bin")
	git := w.write("home/u/.gitconfig", "[user]\nname = u\n")
	skipped := []string{
		w.write("home/u/.cargo/config.toml", "[build]\njobs = 1\n"),
		w.write("home/u/.config/go/env", "GOFLAGS=-x\n"),
		w.write("home/u/.config/mise/config.toml", "[tools]\ngo = '1'\n"),
	}
	s, notices := w.ok()
	if len(notices) > 0 {
		t.Errorf("%v", notices)
	}
	for _, p := range append(skipped, git) {
		wantGrant(t, s, p, "r", policy.File)
	}
	w.write(git, "[http]\nextraHeader = sesame\n")
	for _, p := range skipped {
		w.write(p, "a_token = 'sesame'\n")
	}
	s, notices = w.ok()
	wantGrant(t, s, git, "r", policy.File)
	if !hasNotice(notices, Warning, git+" seems to hold a secret (line 2, key extraHeader), and the worker may read it") {
		t.Errorf("%v", notices)
	}
	for _, p := range skipped {
		if allows(t, s, p, policy.Read) || !hasNotice(notices, Warning, p+" seems to hold a secret (line 1, key a_token): not granted") || !hasNotice(notices, Warning, "--readable "+p) {
			t.Errorf("%s: %v", p, notices)
		}
	}
	for _, n := range notices {
		if strings.Contains(n.Text, "sesame") {
			t.Errorf("the secret is told: %s", n.Text)
		}
	}
	w.write(skipped[0], strings.Repeat("# long\n", 10_000))
	w.write(skipped[1], strings.Repeat("# long\n", 9_000))
	s, notices = w.ok()
	if allows(t, s, skipped[0], policy.Read) || !hasNotice(notices, Warning, "more than 64 KiB") || !allows(t, s, skipped[1], policy.Read) {
		t.Errorf("%v", notices)
	}
}

func FuzzScanSecrets(f *testing.F) {
	f.Add([]byte("<s><!-- x --><password>y</password></s>"))
	f.Add([]byte("[http]\nextraheader = x\nurl = https://a:b@c/"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if found, ok := scanSecrets(data); ok && strings.ContainsAny(found.String(), "\n\x1b\x00") {
			t.Errorf("%q is not one printable line", found)
		}
	})
}
