// Code generated from presets/*.toml by go generate; DO NOT EDIT.

package profiles

import "sandboxd/policy"

var builtins = []profile{
	{
		name:        "system",
		description: "What every program needs: the system's programs and libraries, and the parts of /etc, /proc and /sys that they read. Always on.",
		grants: []rule{
			{paths: []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}, access: policy.Read | policy.Exec, reason: "the system's programs and libraries"},
			{paths: []string{"/opt", "/nix/store", "/snap", "/home/linuxbrew/.linuxbrew"}, access: policy.Read | policy.Exec, reason: "programs beside the system's own", os: "linux"},
			{paths: []string{"/opt", "/nix/store"}, access: policy.Read | policy.Exec, reason: "programs beside the system's own", os: "darwin"},
			{paths: []string{"/System", "/Library/Apple", "/Library/Developer", "/Library/Frameworks", "/Library/Java", "/Applications/Xcode.app"}, access: policy.Read | policy.Exec, reason: "the system's programs and frameworks", os: "darwin"},
			{paths: []string{"/private/var/db/timezone", "/private/var/db/dyld", "/private/var/select"}, access: policy.Read, reason: "time zones and the loader's cache", os: "darwin"},
			{paths: []string{"/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/var/lib/extrausers/passwd", "/var/lib/extrausers/group", "/var/lib/sss/mc"}, access: policy.Read, reason: "names of users and groups, no passwords"},
			{paths: []string{"/etc/hosts", "/etc/host.conf", "/etc/hostname", "/etc/resolv.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols"}, access: policy.Read, reason: "names of hosts and services; resolv.conf is the real file behind a link"},
			{paths: []string{"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/ld-musl-x86_64.path", "/etc/ld-musl-aarch64.path"}, access: policy.Read, reason: "where the loader finds libraries", os: "linux"},
			{paths: []string{"/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/locale.conf", "/etc/default/locale"}, access: policy.Read, reason: "time zone and language"},
			{paths: []string{"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/gnutls", "/var/lib/ca-certificates"}, access: policy.Read, reason: "certificates of authorities, no private keys"},
			{paths: []string{"/etc/alternatives", "/etc/static", "/etc/profiles/per-user"}, access: policy.Read | policy.Exec, reason: "links to the chosen version of a program", os: "linux"},
			{paths: []string{"/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/bashrc", "/etc/inputrc", "/etc/shells", "/etc/zsh", "/etc/zshenv", "/etc/zprofile", "/etc/zshrc", "/etc/paths", "/etc/paths.d", "/etc/fish", "/etc/DIR_COLORS"}, access: policy.Read, reason: "system-wide settings of shells"},
			{paths: []string{"/etc/terminfo", "~/.terminfo", "/etc/termcap"}, access: policy.Read, reason: "how terminals work"},
			{paths: []string{"/etc/magic", "/etc/magic.mime", "/etc/mime.types", "/etc/manpath.config", "/etc/man_db.conf", "/etc/groff"}, access: policy.Read, reason: "kinds of files, and manual pages"},
			{paths: []string{"/etc/os-release", "/etc/lsb-release", "/etc/debian_version", "/etc/redhat-release", "/etc/system-release", "/etc/alpine-release", "/etc/arch-release"}, access: policy.Read, reason: "which system this is"},
			{paths: []string{"/etc/fonts", "/var/cache/fontconfig", "/etc/xdg", "/etc/ImageMagick-6", "/etc/ImageMagick-7", "/etc/texmf", "/var/lib/texmf", "/etc/ghostscript", "/etc/xml"}, access: policy.Read, reason: "fonts and settings of document tools"},
			{paths: []string{"/etc/perl", "/etc/lua", "/etc/php", "/etc/ruby", "/etc/R", "/etc/tmux.conf", "/etc/vim", "/etc/emacs", "/etc/nanorc", "/etc/gdb"}, access: policy.Read, reason: "system-wide settings of interpreters and editors"},
			{paths: []string{"/proc"}, access: policy.Read, reason: "/proc/self, which runtimes read; other processes' command lines are visible then (effect proc.see)", os: "linux"},
			{paths: []string{"/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage", "/sys/kernel/mm/hugepages", "/sys/fs/cgroup"}, access: policy.Read, reason: "how many processors and how much memory a runtime may use", os: "linux"},
		},
		env: []envRule{
			{pass: []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL"}, reason: "who runs, and where programs are"},
			{pass: []string{"LANG", "LANGUAGE", "LC_*", "TZ"}, reason: "language and time zone"},
			{pass: []string{"TERM", "COLORTERM", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "COLUMNS", "LINES"}, reason: "what the terminal can do"},
			{pass: []string{"XDG_*"}, reason: "base directories; those that lead to services do not pass"},
			{pass: []string{"CI"}, reason: "tools ask fewer questions under CI"},
			{pass: []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "NIX_SSL_CERT_FILE", "SOURCE_DATE_EPOCH"}, reason: "where certificates of authorities are; reproducible builds"},
		},
		caches: []cacheRule{
			{Env: "XDG_CACHE_HOME", Dir: "xdg", Reason: "caches of tools that follow the XDG base directories"},
		},
	},
	{
		name:        "dev",
		description: "Devices that hold nothing: sinks, sources of random bytes, and terminals. Always on. /dev/shm is not among them.",
		grants: []rule{
			{paths: []string{"/dev/null", "/dev/zero", "/dev/full"}, access: policy.Read | policy.Write | policy.Ioctl, reason: "sinks and sources that keep nothing"},
			{paths: []string{"/dev/random", "/dev/urandom"}, access: policy.Read | policy.Ioctl, reason: "random bytes"},
			{paths: []string{"/dev/tty"}, access: policy.Read | policy.Write | policy.Ioctl, reason: "the worker's own terminal"},
			{paths: []string{"/dev/ptmx", "/dev/pts"}, access: policy.Read | policy.Write | policy.Ioctl, reason: "new terminals for tmux, script and the like; other terminals of the same user are reachable (a gap of tty.inject)", os: "linux"},
			{paths: []string{"/dev/ptmx"}, access: policy.Read | policy.Write | policy.Ioctl, reason: "new terminals for tmux, script and the like", os: "darwin"},
		},
		env: []envRule{},
	},
	{
		name:        "git",
		description: "git's settings, without credentials. A worktree's directory outside the workspace needs --writable.",
		commands:    []string{"git"},
		grants: []rule{
			{paths: []string{"/etc/gitconfig", "/etc/gitattributes", "/etc/gitignore"}, access: policy.Read, reason: "git's system-wide settings; git stops if it cannot read them, so they are granted with a warning if they seem to hold a secret", secrets: "warn"},
			{paths: []string{"~/.gitconfig", "${XDG_CONFIG_HOME:-~/.config}/git/config"}, access: policy.Read, reason: "the user's name and settings; git stops if it cannot read them, so they are granted with a warning if they seem to hold a secret", secrets: "warn"},
			{paths: []string{"~/.gitignore", "~/.gitignore_global", "~/.gitattributes", "${XDG_CONFIG_HOME:-~/.config}/git/ignore", "${XDG_CONFIG_HOME:-~/.config}/git/attributes"}, access: policy.Read, reason: "what the user's git ignores, and how it treats files"},
		},
		env: []envRule{
			{pass: []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_DATE"}, reason: "who commits, and when; no other GIT_ variable passes"},
		},
	},
	{
		name:        "go",
		description: "The Go toolchain and the modules that were downloaded already.",
		commands:    []string{"go"},
		detectEnv:   []string{"GOROOT"},
		grants: []rule{
			{paths: []string{"$(bin:go)", "$GOROOT"}, access: policy.Read | policy.Exec, reason: "the Go toolchain and its standard library"},
			{paths: []string{"$GOMODCACHE", "${GOPATH:-~/go}/pkg/mod"}, access: policy.Read | policy.Exec, reason: "downloaded modules, and toolchains that go.mod asks for"},
			{paths: []string{"${GOPATH:-~/go}/pkg/sumdb"}, access: policy.Read, reason: "checksums of modules"},
			{paths: []string{"${XDG_CONFIG_HOME:-~/.config}/go/env"}, access: policy.Read, reason: "settings made with go env -w, if none seems secret; go works without them, but builds differently", secrets: "skip"},
			{paths: []string{"~/sdk/go*"}, access: policy.Read | policy.Exec, reason: "toolchains installed with golang.org/dl"},
		},
		env: []envRule{
			{pass: []string{"GOROOT", "GOPATH", "GOMODCACHE", "GOTOOLCHAIN", "GOBIN", "GOWORK", "GO111MODULE"}, reason: "where Go's files are"},
			{pass: []string{"GOOS", "GOARCH", "GOAMD64", "GOARM", "GOARM64", "CGO_ENABLED", "GOEXPERIMENT", "GOPRIVATE", "GONOSUMDB", "GOSUMDB", "GODEBUG", "GOMAXPROCS", "GOGC", "GOMEMLIMIT", "GOTRACEBACK"}, reason: "what to build, and how to run it"},
		},
		caches: []cacheRule{
			{Env: "GOCACHE", Dir: "go-build", Reason: "go's build cache"},
		},
	},
	{
		name:        "node",
		description: "Node.js with npm, pnpm, yarn, corepack, nvm, fnm and volta.",
		commands:    []string{"node", "npm", "bun", "deno"},
		detectEnv:   []string{"NVM_DIR", "PNPM_HOME", "VOLTA_HOME"},
		grants: []rule{
			{paths: []string{"$(bin:node)"}, access: policy.Read | policy.Exec, reason: "node and its global packages"},
			{paths: []string{"${NVM_DIR:-~/.nvm}", "${FNM_DIR:-~/.local/share/fnm}"}, access: policy.Read | policy.Exec, reason: "versions of node"},
			{paths: []string{"${PNPM_HOME:-~/.local/share/pnpm}", "~/Library/pnpm"}, access: policy.Read | policy.Exec, reason: "pnpm and its store of packages"},
			{paths: []string{"${COREPACK_HOME:-~/.cache/node/corepack}", "~/.yarn/berry", "~/.config/yarn/global"}, access: policy.Read | policy.Exec, reason: "package managers that corepack and yarn downloaded"},
			{paths: []string{"${VOLTA_HOME:-~/.volta}/bin", "${VOLTA_HOME:-~/.volta}/tools", "~/.bun/bin", "~/.deno/bin", "~/.npm-global"}, access: policy.Read | policy.Exec, reason: "programs that node's managers installed"},
		},
		env: []envRule{
			{pass: []string{"NODE_ENV", "NODE_EXTRA_CA_CERTS", "NVM_DIR", "NVM_BIN", "NVM_INC", "PNPM_HOME", "COREPACK_HOME", "VOLTA_HOME", "FNM_DIR", "UV_THREADPOOL_SIZE"}, reason: "which node, and where its files are"},
		},
		caches: []cacheRule{
			{Env: "npm_config_cache", Dir: "npm", Reason: "npm's cache of packages"},
			{Env: "YARN_CACHE_FOLDER", Dir: "yarn", Reason: "yarn's cache of packages"},
		},
	},
	{
		name:        "python",
		description: "Python with venv, pip, pyenv, uv, pipx and conda.",
		commands:    []string{"python3", "uv"},
		detectEnv:   []string{"PYENV_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX"},
		grants: []rule{
			{paths: []string{"$(bin:python3)"}, access: policy.Read | policy.Exec, reason: "the interpreter and its standard library; a version manager's tree if python is its shim"},
			{paths: []string{"${PYENV_ROOT:-~/.pyenv}"}, access: policy.Read | policy.Exec, reason: "pyenv, its shims and versions of python"},
			{paths: []string{"$VIRTUAL_ENV"}, access: policy.Read | policy.Exec, reason: "the active virtual environment"},
			{paths: []string{"~/.local/lib/python*", "~/Library/Python"}, access: policy.Read | policy.Exec, reason: "packages installed with pip --user"},
			{paths: []string{"~/.local/share/uv/python", "~/.local/share/uv/tools", "~/.local/share/pipx/venvs", "~/.local/pipx/venvs"}, access: policy.Read | policy.Exec, reason: "interpreters and tools that uv and pipx installed"},
			{paths: []string{"$CONDA_PREFIX", "~/miniconda3", "~/anaconda3", "~/miniforge3"}, access: policy.Read | policy.Exec, reason: "conda's environments"},
			{paths: []string{"/etc/python*", "/etc/pyenv"}, access: policy.Read, reason: "python's system-wide settings"},
		},
		env: []envRule{
			{pass: []string{"PYENV_ROOT", "PYENV_VERSION", "PYENV_SHELL", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"}, reason: "which python"},
			{pass: []string{"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "PYTHONNOUSERSITE", "PIP_DISABLE_PIP_VERSION_CHECK", "REQUESTS_CA_BUNDLE"}, reason: "how python runs; none of these loads code"},
		},
		caches: []cacheRule{
			{Env: "PIP_CACHE_DIR", Dir: "pip", Reason: "pip's cache of packages"},
			{Env: "UV_CACHE_DIR", Dir: "uv", Reason: "uv's cache of packages"},
		},
	},
	{
		name:        "rust",
		description: "Rust with rustup and cargo; crates that were downloaded already, no credentials.",
		commands:    []string{"cargo", "rustc"},
		detectEnv:   []string{"CARGO_HOME", "RUSTUP_HOME"},
		grants: []rule{
			{paths: []string{"${RUSTUP_HOME:-~/.rustup}/toolchains", "${RUSTUP_HOME:-~/.rustup}/settings.toml", "${RUSTUP_HOME:-~/.rustup}/update-hashes"}, access: policy.Read | policy.Exec, reason: "toolchains that rustup installed, and which one is chosen"},
			{paths: []string{"${CARGO_HOME:-~/.cargo}/bin", "${CARGO_HOME:-~/.cargo}/env"}, access: policy.Read | policy.Exec, reason: "rustup's shims and installed programs"},
			{paths: []string{"${CARGO_HOME:-~/.cargo}/registry", "${CARGO_HOME:-~/.cargo}/git"}, access: policy.Read, reason: "downloaded crates, no credentials"},
			{paths: []string{"${CARGO_HOME:-~/.cargo}/config.toml", "${CARGO_HOME:-~/.cargo}/config"}, access: policy.Read, reason: "cargo's settings, if none seems secret; cargo stops if it cannot read them, and keeps tokens in credentials.toml by itself", secrets: "skip"},
		},
		env: []envRule{
			{pass: []string{"CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "RUSTUP_AUTO_INSTALL"}, reason: "where Rust's files are"},
			{pass: []string{"RUST_BACKTRACE", "RUST_LOG", "RUST_TEST_THREADS", "CARGO_INCREMENTAL", "CARGO_TERM_COLOR", "CARGO_NET_OFFLINE"}, reason: "how to build and what to show"},
		},
	},
	{
		name:        "java",
		description: "Java with Maven and Gradle; libraries that were downloaded already, no settings that hold passwords.",
		commands:    []string{"java", "javac", "mvn", "gradle", "kotlinc", "sbt"},
		detectEnv:   []string{"JAVA_HOME"},
		grants: []rule{
			{paths: []string{"$JAVA_HOME", "$(bin:java)", "~/.sdkman/candidates", "~/.jdks"}, access: policy.Read | policy.Exec, reason: "the Java runtime and compiler"},
			{paths: []string{"$(bin:mvn)", "$(bin:gradle)", "$MAVEN_HOME", "$M2_HOME", "$GRADLE_HOME"}, access: policy.Read | policy.Exec, reason: "the build tools"},
			{paths: []string{"/etc/java", "/etc/java-*", "/etc/.java", "/etc/gradle", "/etc/jvm-*"}, access: policy.Read, reason: "system-wide settings of Java and its tools"},
			{paths: []string{"/etc/maven/m2.conf", "/etc/maven/logging", "/etc/maven/toolchains.xml"}, access: policy.Read, reason: "how Maven starts"},
			{paths: []string{"/etc/maven/settings.xml"}, access: policy.Read, reason: "Maven's system-wide settings, if no password seems to be among them", secrets: "skip"},
			{paths: []string{"~/.m2/repository", "~/.m2/wrapper", "~/.ivy2/cache"}, access: policy.Read | policy.Exec, reason: "downloaded libraries and plugins"},
			{paths: []string{"~/.gradle/wrapper", "~/.gradle/caches", "~/.gradle/jdks"}, access: policy.Read | policy.Exec, reason: "Gradle's downloaded distributions and libraries"},
		},
		env: []envRule{
			{pass: []string{"JAVA_HOME", "JDK_HOME", "MAVEN_HOME", "M2_HOME", "GRADLE_HOME", "SDKMAN_DIR"}, reason: "where Java's files are"},
		},
		caches: []cacheRule{
			{Env: "GRADLE_USER_HOME", Dir: "gradle", Reason: "Gradle's own directory, which it must be able to write"},
		},
	},
	{
		name:        "cc",
		description: "C and C++: gcc, clang, make, cmake, ninja, ccache.",
		commands:    []string{"cc", "make", "gcc", "clang"},
		grants: []rule{
			{paths: []string{"$(bin:cc)", "$(bin:clang)", "$(bin:cmake)"}, access: policy.Read | policy.Exec, reason: "compilers that stand outside the system's directories"},
			{paths: []string{"/etc/clang", "/etc/ccache.conf"}, access: policy.Read, reason: "system-wide settings of compilers"},
		},
		env: []envRule{
			{pass: []string{"CC", "CXX", "CPP", "AR", "LD", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_GENERATOR", "CMAKE_BUILD_PARALLEL_LEVEL", "PKG_CONFIG_PATH", "SDKROOT", "DEVELOPER_DIR", "MACOSX_DEPLOYMENT_TARGET"}, reason: "which compiler, with which options"},
		},
		caches: []cacheRule{
			{Env: "CCACHE_DIR", Dir: "ccache", Reason: "ccache's objects"},
		},
	},
	{
		name:        "managers",
		description: "Version managers for many languages: asdf and mise, if they are there.",
		grants: []rule{
			{paths: []string{"${ASDF_DATA_DIR:-~/.asdf}", "$ASDF_DIR"}, access: policy.Read | policy.Exec, reason: "asdf, its shims and what it installed"},
			{paths: []string{"${MISE_DATA_DIR:-~/.local/share/mise}/installs", "${MISE_DATA_DIR:-~/.local/share/mise}/shims", "${MISE_DATA_DIR:-~/.local/share/mise}/plugins"}, access: policy.Read | policy.Exec, reason: "mise's shims and what it installed"},
			{paths: []string{"~/.tool-versions"}, access: policy.Read, reason: "which versions are chosen"},
			{paths: []string{"${XDG_CONFIG_HOME:-~/.config}/mise/config.toml"}, access: policy.Read, reason: "which versions are chosen, if no variable that mise sets seems secret", secrets: "skip"},
		},
		env: []envRule{
			{pass: []string{"ASDF_DIR", "ASDF_DATA_DIR", "MISE_DATA_DIR", "MISE_SHELL"}, reason: "where the managers' files are"},
		},
	},
}
