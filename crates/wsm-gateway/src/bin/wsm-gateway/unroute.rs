//! Makes addresses unreachable for everything in this network namespace.
//!
//! Whoever starts containers runs this beside them, with the right to change their network, which nothing in them has.

use std::{fs, net::IpAddr};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketType, netdevice::name_to_index, recv, send, socket},
};
use wsm_core::{Error, ErrorKind, Result};

// <linux/netlink.h>, <linux/rtnetlink.h> and <linux/neighbour.h>
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWNEIGH: u16 = 28;
const NLMSG_ERROR: u16 = 2;
/// Request, and acknowledge; create, or replace.
const FLAGS: u16 = 0x1 | 0x4 | 0x400 | 0x100;
const TABLE_MAIN: u8 = 254;
const STATIC: u8 = 4;
/// Packets are refused, and whoever sent them is told.
const PROHIBIT: u8 = 8;
/// In both messages.
const DESTINATION: u16 = 1;
const LINK_ADDRESS: u16 = 2;
const PERMANENT: u8 = 0x80;
/// A link address that nobody has.
const NOBODY: [u8; 6] = [2, 0, 0, 0, 0, 0];
const HEAD_BYTES: usize = 16;
/// Lists the devices of this namespace.
const DEVICES: &str = "/proc/self/net/dev";

/// Refuses packets to each of these, and says so.
///
/// # Errors
///
/// `backend` with what the kernel says. Where it has no IPv6, such an address is unreachable already.
pub(crate) fn unroute(addresses: &[IpAddr]) -> Result<()> {
    for &address in addresses {
        match refuse(address) {
            Err(Errno::AFNOSUPPORT | Errno::OPNOTSUPP) if address.is_ipv6() => {}
            refused => refused.map_err(|errno| {
                Error::new(ErrorKind::Backend, format!("{address} can not be made unreachable")).with_source(errno)
            })?,
        }
    }
    // Whoever waits for that need not wait for the end of this process.
    println!("unrouted");
    Ok(())
}

fn refuse(address: IpAddr) -> rustix::io::Result<()> {
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    let ask = |kind, head: &[u8], attributes: &[(u16, &[u8])]| -> rustix::io::Result<()> {
        send(&socket, &message(kind, head, attributes), SendFlags::empty())?;
        let mut answer = [0; 256];
        let (bytes, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
        outcome(answer.get(..bytes).unwrap_or_default())
    };
    let (family, bytes) = match &address {
        IpAddr::V4(address) => (AddressFamily::INET, &address.octets()[..]),
        IpAddr::V6(address) => (AddressFamily::INET6, &address.octets()[..]),
    };
    // An address has at most 128 bits.
    let (family, bits) = (family.as_raw() as u8, bytes.len() as u8 * 8);
    let route = [family, bits, 0, 0, TABLE_MAIN, STATIC, 0, PROHIBIT, 0, 0, 0, 0];
    ask(RTM_NEWROUTE, &route, &[(DESTINATION, bytes)])?;
    if address.is_ipv6() {
        return Ok(());
    }
    // For a socket that is bound to a device the kernel takes what has no route for a neighbour, and asks for it there.
    let devices = fs::read_to_string(DEVICES).map_err(|_| Errno::NODEV)?;
    for name in devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).filter(|name| *name != "lo") {
        let [a, b, c, d] = name_to_index(&socket, name)?.to_ne_bytes();
        let neighbour = [family, 0, 0, 0, a, b, c, d, PERMANENT, 0, 0, 0];
        ask(RTM_NEWNEIGH, &neighbour, &[(DESTINATION, bytes), (LINK_ADDRESS, &NOBODY)])?;
    }
    Ok(())
}

fn message(kind: u16, head: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend(kind.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(head);
    for (name, value) in attributes {
        message.extend((value.len() as u16 + 4).to_ne_bytes());
        message.extend(name.to_ne_bytes());
        message.extend(*value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let whole = (message.len() as u32).to_ne_bytes();
    message[..4].copy_from_slice(&whole);
    message
}

/// What the kernel says to a message.
fn outcome(answer: &[u8]) -> rustix::io::Result<()> {
    let kind = answer.get(4..6).and_then(|kind| <[u8; 2]>::try_from(kind).ok()).map(u16::from_ne_bytes);
    let code = answer.get(HEAD_BYTES..HEAD_BYTES + 4).and_then(|code| <[u8; 4]>::try_from(code).ok());
    match (kind, code.map(i32::from_ne_bytes)) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::PROTO),
    }
}
