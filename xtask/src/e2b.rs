//! Installs the official SDKs of E2B that the stand-in for its cloud is driven with.

use anyhow::Result;

use crate::packages::Packages;

pub(crate) fn setup() -> Result<()> {
    let sdks = Packages {
        what: "the SDKs of E2B",
        directory: "target/e2b-sdk",
        npm: &["e2b@2.51.0"],
        python: &["e2b==2.63.0"],
    };
    sdks.install()
}
