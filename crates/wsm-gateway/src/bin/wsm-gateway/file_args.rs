//! What the command line says of a search, an archive or a call.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use wsm_gateway::{ArchiveFormat, GlobKind, GlobRequest, GrepMode, GrepRequest, Overwrite, UnpackRequest, WalkOptions};

/// What to do with files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FileAction {
    Glob(GlobRequest),
    Grep(GrepRequest),
    /// From this file, or from stdin.
    Unpack(UnpackRequest, Option<PathBuf>),
}

/// The words that are left.
struct Words<I> {
    words: I,
    action: &'static str,
    /// Whether what comes now is no option, whatever it looks like.
    only_values: bool,
}

impl<I: Iterator<Item = OsString>> Words<I> {
    fn new(action: &'static str, words: I) -> Self {
        Self { words, action, only_values: false }
    }

    /// The next option, or the one value that is not an option's.
    fn next(&mut self, value: &mut Option<String>) -> Result<Option<String>, String> {
        for word in self.words.by_ref() {
            let word = text(&word)?;
            if !self.only_values && word == "--" {
                self.only_values = true;
            } else if !self.only_values && word.len() > 1 && word.starts_with('-') {
                return Ok(Some(word));
            } else if value.is_some() {
                return Err(format!("`{word}` is too much for `{}`", self.action));
            } else {
                *value = Some(word);
            }
        }
        Ok(None)
    }

    fn value(&mut self, option: &str) -> Result<String, String> {
        self.words.next().as_deref().map_or_else(|| Err(format!("`{option}` needs a value")), text)
    }

    fn number<T: FromStr>(&mut self, option: &str) -> Result<T, String> {
        let value = self.value(option)?;
        value.parse().map_err(|_| format!("`{option}` needs a number, and `{value}` is none"))
    }

    fn unknown<T>(&self, option: &str) -> Result<T, String> {
        Err(format!("`{}` does not know `{option}`", self.action))
    }
}

fn text(word: &OsStr) -> Result<String, String> {
    word.to_str().map(str::to_owned).ok_or_else(|| format!("`{}` is not UTF-8", word.display()))
}

/// Whether it was an option about where to search.
fn walk_option(
    words: &mut Words<impl Iterator<Item = OsString>>,
    option: &str,
    walk: &mut WalkOptions,
) -> Result<bool, String> {
    match option {
        "--path" => walk.path = Some(words.value(option)?),
        "--hidden" => walk.hidden = true,
        "--no-ignore" => walk.ignore_files = false,
        "--follow" => walk.follow_links = true,
        "--max-depth" => walk.max_depth = Some(words.number(option)?),
        "--max-entries" => walk.max_entries = words.number(option)?,
        "--timeout" => *walk = std::mem::take(walk).with_timeout(Duration::from_secs(words.number(option)?)),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Understands what comes after `glob`. Gives whether to answer in JSON, too.
pub(crate) fn parse_glob(words: impl Iterator<Item = OsString>) -> Result<(FileAction, bool), String> {
    let mut words = Words::new("glob", words);
    let (mut request, mut pattern, mut json) = (GlobRequest::new(""), None, false);
    while let Some(option) = words.next(&mut pattern)? {
        match option.as_str() {
            "--json" => json = true,
            "-i" | "--ignore-case" => request.case_insensitive = true,
            "--directories" => request.kind = GlobKind::Directories,
            "--any" => request.kind = GlobKind::Any,
            "--limit" => request.limit = words.number(&option)?,
            _ if walk_option(&mut words, &option, &mut request.walk)? => {}
            _ => return words.unknown(&option),
        }
    }
    request.pattern = pattern.ok_or("`glob` needs a pattern")?;
    Ok((FileAction::Glob(request), json))
}

/// Understands what comes after `grep`. Gives whether to answer in JSON, too.
pub(crate) fn parse_grep(words: impl Iterator<Item = OsString>) -> Result<(FileAction, bool), String> {
    let mut words = Words::new("grep", words);
    let (mut request, mut pattern, mut json) = (GrepRequest::new(""), None, false);
    while let Some(option) = words.next(&mut pattern)? {
        match option.as_str() {
            "--json" => json = true,
            "-i" | "--ignore-case" => request.case_insensitive = true,
            "-F" | "--fixed-strings" => request.fixed_strings = true,
            "-w" | "--word" => request.word = true,
            "-U" | "--multiline" => request.multiline = true,
            "-l" | "--files-with-matches" => request.mode = GrepMode::FilesWithMatches,
            "-c" | "--count" => request.mode = GrepMode::Count,
            "-B" | "--before" => request.before = words.number(&option)?,
            "-A" | "--after" => request.after = words.number(&option)?,
            "-C" | "--context" => {
                let lines = words.number(&option)?;
                (request.before, request.after) = (lines, lines);
            }
            "-g" | "--glob" => request.globs.push(words.value(&option)?),
            "-t" | "--type" => request.types.push(words.value(&option)?),
            "--limit" => request.limit = words.number(&option)?,
            "--max-line-bytes" => request.max_line_bytes = words.number(&option)?,
            "--max-bytes" => request.max_bytes = words.number(&option)?,
            _ if walk_option(&mut words, &option, &mut request.walk)? => {}
            _ => return words.unknown(&option),
        }
    }
    request.pattern = pattern.ok_or("`grep` needs a pattern")?;
    Ok((FileAction::Grep(request), json))
}

/// Understands what comes after `unpack`. Gives whether to answer in JSON, too.
pub(crate) fn parse_unpack(words: impl Iterator<Item = OsString>) -> Result<(FileAction, bool), String> {
    let mut words = Words::new("unpack", words);
    let (mut request, mut path, mut file, mut json) = (UnpackRequest::new(""), None, None, false);
    while let Some(option) = words.next(&mut path)? {
        match option.as_str() {
            "--json" => json = true,
            "--file" => file = Some(words.value(&option)?.into()),
            "--format" => {
                request.format = Some(match words.value(&option)?.as_str() {
                    "zip" => ArchiveFormat::Zip,
                    "tar" => ArchiveFormat::Tar,
                    "tar.gz" | "tgz" => ArchiveFormat::TarGz,
                    other => return Err(format!("`--format` is `zip`, `tar` or `tar.gz`, not `{other}`")),
                });
            }
            "--overwrite" => {
                request.overwrite = match words.value(&option)?.as_str() {
                    "refuse" => Overwrite::Refuse,
                    "replace" => Overwrite::Replace,
                    "merge" => Overwrite::Merge,
                    other => return Err(format!("`--overwrite` is `refuse`, `replace` or `merge`, not `{other}`")),
                }
            }
            "--max-bytes" => request.max_bytes = words.number(&option)?,
            "--max-entries" => request.max_entries = words.number(&option)?,
            "--max-ratio" => request.max_ratio = words.number(&option)?,
            _ => return words.unknown(&option),
        }
    }
    request.path = path.ok_or("`unpack` needs a directory")?;
    Ok((FileAction::Unpack(request, file), json))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = OsString> {
        line.split_ascii_whitespace().map(OsString::from).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn searches_and_archives_are_understood() {
        let walk = WalkOptions::default().with_path("src").with_hidden(true).with_timeout(Duration::from_secs(3));
        let glob = GlobRequest::new("**/*.rs").with_walk(walk).with_limit(5);
        let parsed = parse_glob(words("--path src **/*.rs --limit 5 --hidden --timeout 3 --json"));
        assert_eq!(parsed, Ok((FileAction::Glob(glob), true)));
        let grep = GrepRequest::new("-x").with_context(2, 2).with_globs(["*.rs"]).with_fixed_strings(true);
        assert_eq!(parse_grep(words("-C 2 -F -g *.rs -- -x")), Ok((FileAction::Grep(grep), false)));
        let unpack = UnpackRequest::new("out").with_format(ArchiveFormat::TarGz).with_overwrite(Overwrite::Merge);
        let parsed = parse_unpack(words("out --format tgz --overwrite merge --file a.tgz"));
        assert_eq!(parsed, Ok((FileAction::Unpack(unpack, Some("a.tgz".into())), false)));
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        assert!(parse_glob(words("")).unwrap_err().contains("pattern"));
        assert!(parse_glob(words("a b")).unwrap_err().contains("`b`"));
        assert!(parse_glob(words("a --limit x")).unwrap_err().contains("`x`"));
        assert!(parse_grep(words("a -g")).unwrap_err().contains("`-g`"));
        assert!(parse_grep(words("a --frob")).unwrap_err().contains("`--frob`"));
        assert!(parse_unpack(words("a --format rar")).unwrap_err().contains("`rar`"));
    }
}
