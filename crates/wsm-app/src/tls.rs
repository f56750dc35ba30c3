//! Who does the cryptography of TLS.

/// Names ring for the whole process, unless somebody was named already. The command does it when it starts; who embeds the app
/// calls it before making HTTP clients of `reqwest` that were built without a provider of their own: the E2B backend takes
/// TLS into that crate, and such clients end the program where nobody is named.
pub fn install() {
    // Taken already is as good.
    #[cfg(feature = "e2b")]
    let _ = rustls::crypto::ring::default_provider().install_default();
}
