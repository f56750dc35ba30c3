//! misbehaviour
