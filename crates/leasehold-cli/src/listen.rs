//! Where to listen, as a flag says it.

use leasehold_core::{Error, Result};
use std::net::{IpAddr, SocketAddr};

/// The address in a flag; `port` is that of the example. What is wrong with it is named.
pub fn address(flag: &str, text: &str, port: u16) -> Result<SocketAddr> {
    let refuse = |what: &str| {
        let form = format!("use ADDRESS:PORT with an IP address, not a name, such as 127.0.0.1:{port} or [::1]:{port}");
        Error::invalid(flag, text, format!("{what}{form}"))
    };
    text.parse().map_err(|_| match text.rsplit_once(':') {
        Some(("", port)) if port.parse::<u16>().is_ok() => refuse("the address before the port is missing; "),
        Some((host, port)) if is_address(host) && port.parse::<u16>().is_err() => match port {
            "" => refuse("the port is missing; "),
            port if port.bytes().all(|b| b.is_ascii_digit()) => {
                refuse(&format!("there is no port {port}, the highest is 65535; "))
            }
            port => refuse(&format!("`{}` is no port; ", leasehold_core::printable(port))),
        },
        _ if is_address(text) => refuse("the port is missing; "),
        _ => refuse(""),
    })
}

fn is_address(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()),
        None => text.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_an_address_is_named() {
        let says = |text: &str| address("--listen", text, 7117).unwrap_err().to_string();
        assert!(says("127.0.0.1:80000").contains("there is no port 80000, the highest is 65535; use ADDRESS:PORT"));
        assert!(says("127.0.0.1:http").contains("`http` is no port; use"));
        assert!(says(":7118").contains("the address before the port is missing; use"));
        assert!(says("127.0.0.1").contains("the port is missing; use"));
        assert!(says("[::1]:").contains("the port is missing; use"));
        assert!(says("localhost:7117").contains("`localhost:7117`: use ADDRESS:PORT with an IP address, not a name"));
        assert_eq!(address("--listen", "[::1]:0", 7117).unwrap().port(), 0);
    }
}
