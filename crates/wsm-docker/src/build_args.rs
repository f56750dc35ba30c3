//! What of this process's environment the building of an image gets: where proxies and the package index are.
//!
//! It is no part of what names the image, and the image does not show it: the proxies are the builder's own arguments, which
//! it leaves out of an image's history, and the others are those of a stage of which only the packages are taken.

use std::{collections::HashMap, env};

/// Known to every builder, which is why no line has to declare them.
const PREDEFINED: [&str; 5] = ["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"];
/// Declared where packages are installed. Paths are of no use there, so none of those.
pub(crate) const OF_PACKAGES: [&str; 5] =
    ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"];

/// Declared where packages were installed: which installation builds.
pub(crate) const BUILDER: &str = "WSM_BUILDER";

/// The arguments, in the spelling in which they are set.
pub(crate) fn from_environment(has_packages: bool, builder: &str) -> HashMap<String, String> {
    let mut args = select(|name| env::var(name).ok(), has_packages);
    if has_packages {
        args.insert(BUILDER.to_owned(), builder.to_owned());
    }
    args
}

fn select(get: impl Fn(&str) -> Option<String>, has_packages: bool) -> HashMap<String, String> {
    let proxies = PREDEFINED.into_iter().flat_map(|name| [name.to_owned(), name.to_lowercase()]);
    let packages = OF_PACKAGES.into_iter().filter(|_| has_packages).map(str::to_owned);
    let set = proxies.chain(packages).filter_map(|name| Some((get(&name)?, name)));
    set.filter(|(value, _)| !value.is_empty()).map(|(value, name)| (name, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_builds_need_is_passed_on() {
        let get = |name: &str| match name {
            "https_proxy" | "NO_PROXY" | "PIP_INDEX_URL" | "SECRET" | "PIP_CERT" => Some(format!("of {name}")),
            "HTTP_PROXY" => Some(String::new()),
            _ => None,
        };
        let names = |has_packages| {
            let mut names: Vec<_> = select(get, has_packages).into_keys().collect();
            names.sort();
            names
        };
        assert_eq!(names(true), ["NO_PROXY", "PIP_INDEX_URL", "https_proxy"]);
        assert_eq!(names(false), ["NO_PROXY", "https_proxy"]);
    }
}
