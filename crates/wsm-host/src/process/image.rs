//! From a command to what the kernel is given.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    io,
    os::unix::ffi::OsStrExt,
};

use wsm_core::Command;

use super::{environment::Environment, vfork::Image};

/// Where `execvp` looks when a `PATH` is empty at one place: the directory that the program runs in.
const HERE: &str = ".";

/// Puts together what `command` becomes in an environment. The `marks` win over all other variables.
///
/// # Errors
///
/// For a string with a NUL byte.
pub(super) fn image(
    command: &Command,
    environment: &Environment,
    marks: &[(&'static str, String)],
) -> io::Result<Image> {
    let mut variables: BTreeMap<&OsStr, &OsStr> = environment.iter().collect();
    variables.extend(command.env.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
    variables.extend(marks.iter().map(|(name, value)| (OsStr::new(*name), OsStr::new(value))));
    let path = variables.get(OsStr::new("PATH")).copied().unwrap_or(environment.path());
    let variables = variables.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    Ok(Image {
        candidates: candidates(command.program(), path)?,
        arguments: command.argv.iter().map(|arg| CString::new(arg.as_str())).collect::<Result<_, _>>()?,
        variables: variables.map(CString::new).collect::<Result<_, _>>()?,
    })
}

/// Where a program may be.
fn candidates(program: &str, path: &OsStr) -> io::Result<Vec<CString>> {
    if program.is_empty() {
        return Ok(Vec::new());
    }
    if program.contains('/') {
        return Ok(vec![CString::new(program)?]);
    }
    let candidate = |place: &[u8]| {
        let place = if place.is_empty() { HERE.as_bytes() } else { place };
        Ok(CString::new([place, b"/", program.as_bytes()].concat())?)
    };
    path.as_bytes().split(|&byte| byte == b':').map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(strings: &[CString]) -> Vec<&str> {
        strings.iter().map(|string| string.to_str().unwrap()).collect()
    }

    fn environment() -> Environment {
        let variables = [("PATH", "/usr/bin::/bin"), ("A", "1")];
        Environment::new(variables.map(|(name, value)| (name.into(), value.into())).into())
    }

    #[test]
    fn later_variables_win_and_marks_over_all() {
        let command = Command::from_argv(["x", "", "y z"]).with_env("A", "2").with_env("MARK", "forged");
        let image = image(&command, &environment(), &[("MARK", "real".to_owned())]).unwrap();
        assert_eq!(strings(&image.variables), ["A=2", "MARK=real", "PATH=/usr/bin::/bin"]);
        assert_eq!(strings(&image.arguments), ["x", "", "y z"]);
        assert_eq!(strings(&image.candidates), ["/usr/bin/x", "./x", "/bin/x"]);
    }

    #[test]
    fn a_program_is_looked_up_only_by_a_bare_name() {
        let candidates = |program| image(&Command::new(program), &environment(), &[]).unwrap().candidates;
        assert_eq!(strings(&candidates("./x")), ["./x"]);
        assert_eq!(strings(&candidates("/a/x")), ["/a/x"]);
        assert!(candidates("").is_empty());
    }

    #[test]
    fn a_nul_byte_is_refused() {
        for command in [Command::new("a\0"), Command::new("a").arg("\0"), Command::new("a").with_env("A", "\0")] {
            assert!(image(&command, &environment(), &[]).is_err());
        }
    }
}
