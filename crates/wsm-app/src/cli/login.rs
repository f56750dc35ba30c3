//! Who runs this command.

/// The name of whoever runs this, as far as it is known.
pub(super) fn login_name() -> String {
    let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let listed = || {
        let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
        let mut fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        fields.find(|fields| fields.get(2).is_some_and(|id| *id == uid.to_string())).map(|fields| fields[0].to_owned())
    };
    variable("LOGNAME").or_else(|| variable("USER")).or_else(listed).unwrap_or_else(|| format!("uid-{uid}"))
}
