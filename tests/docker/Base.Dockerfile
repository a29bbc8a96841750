# Debian's Python in the place of the public image of Python. It trusts the authorities that this
# machine trusts, which a proxy before the package index may need.
FROM trainyard-test/debian
COPY certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin LANG=C.UTF-8 \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN ln -s /usr/bin/python3.11 /usr/local/bin/python \
 && ln -s /usr/bin/python3.11 /usr/local/bin/python3 \
 && rm -f /usr/lib/python3.11/EXTERNALLY-MANAGED
