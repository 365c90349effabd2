package landlock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNamespacesForbidden(t *testing.T) {
	for _, x := range []struct {
		name  string
		files map[string]string
		user  bool
		want  string // of the fix
	}{
		{"nothing is said", nil, true, ""},
		{"all is allowed", map[string]string{"kernel/unprivileged_userns_clone": "1", "user/max_user_namespaces": "100"}, true, ""},
		{"Debian's switch", map[string]string{"kernel/unprivileged_userns_clone": "0"}, true, "unprivileged_userns_clone=1"},
		{"Debian's switch, root", map[string]string{"kernel/unprivileged_userns_clone": "0"}, false, ""},
		{"every kernel's switch", map[string]string{"user/max_user_namespaces": "0"}, true, "max_user_namespaces="},
		{"AppArmor", map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1", "../self/attr/current": "unconfined\n"}, true, "apparmor"},
		{"AppArmor, with a profile", map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1", "../self/attr/current": "sbx (enforce)\n"}, true, ""},
		{"no mount namespaces", map[string]string{"user/max_mnt_namespaces": "0"}, false, "max_mnt_namespaces"},
	} {
		root := t.TempDir()
		for name, text := range x.files {
			file := filepath.Join(root, "proc/sys", name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		fix := ""
		if f := namespacesForbidden(root, x.user); f != nil {
			fix = f.fix
		}
		if x.want == "" && fix != "" || !strings.Contains(fix, x.want) {
			t.Errorf("%s: %q", x.name, fix)
		}
	}
}

func TestTryNamespaces(t *testing.T) {
	if f := namespacesForbidden("/", os.Geteuid() != 0); f != nil {
		t.Skip(f.reason)
	}
	if err := tryNamespaces(); err != nil {
		t.Error(err)
	}
}
