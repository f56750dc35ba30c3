//! Who does the cryptography of TLS.

/// Names ring for the whole process, unless somebody was named already. The command does it before it makes a client; who
/// embeds the app calls it before making clients of a `reqwest` that was built without a provider of its own: the E2B backend takes
/// TLS into that crate, and such clients end the program where nobody is named.
pub fn install() {
    // Taken already is as good.
    #[cfg(feature = "e2b")]
    let _ = rustls::crypto::ring::default_provider().install_default();
}
