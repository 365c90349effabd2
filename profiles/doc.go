// Package profiles turns what a person says (flags, presets, profile files, a
// project's own file) into a [policy.Spec].
//
// It only reads the file system: nothing is made, changed or run, so a dry run
// leaves nothing behind. The process's environment, home and ids are passed in
// by the caller ([Request]); there is no global state.
//
// Four kinds of file speak, from the weakest to the strongest word:
//
//   - presets, which are built in (presets/*.toml) and list what the system and
//     the toolchains need, each grant with its reason;
//   - the user's files, $XDG_CONFIG_HOME/sbx/profiles/NAME.toml;
//   - the administrator's files, /etc/sbx/profiles/NAME.toml;
//   - the project's own file, WORKSPACE/.sbx.toml, which nobody trusts: it can
//     only tighten.
//
// A file replaces a weaker one of the same name as a whole. README.md beside
// this file describes the format.
//
// Everything a grant names is resolved once, symbolic links included, to a
// real, clean, absolute path. What the caller named and cannot be had is a
// refusal; what a preset names and is not there is skipped, and what is odd
// about it is a notice: one odd root never disables the rest.
package profiles
