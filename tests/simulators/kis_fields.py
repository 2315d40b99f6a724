"""Fields of the answers of KIS, by its documents."""

QUOTE = """
    iscd_stat_cls_code marg_rate rprs_mrkt_kor_name new_hgpr_lwpr_cls_code bstp_kor_isnm
    temp_stop_yn oprc_rang_cont_yn clpr_rang_cont_yn crdt_able_yn grmn_rate_cls_code elw_pblc_yn
    stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_tr_pbmn acml_vol prdy_vrss_vol_rate stck_oprc
    stck_hgpr stck_lwpr stck_mxpr stck_llam stck_sdpr wghn_avrg_stck_prc hts_frgn_ehrt frgn_ntby_qty
    pgtr_ntby_qty pvt_scnd_dmrs_prc pvt_frst_dmrs_prc pvt_pont_val pvt_frst_dmsp_prc
    pvt_scnd_dmsp_prc dmrs_val dmsp_val cpfn rstc_wdth_prc stck_fcam stck_sspr aspr_unit
    hts_deal_qty_unit_val lstn_stcn hts_avls per pbr stac_month vol_tnrt eps bps d250_hgpr
    d250_hgpr_date d250_hgpr_vrss_prpr_rate d250_lwpr d250_lwpr_date d250_lwpr_vrss_prpr_rate
    stck_dryy_hgpr dryy_hgpr_vrss_prpr_rate dryy_hgpr_date stck_dryy_lwpr dryy_lwpr_vrss_prpr_rate
    dryy_lwpr_date w52_hgpr w52_hgpr_vrss_prpr_ctrt w52_hgpr_date w52_lwpr w52_lwpr_vrss_prpr_ctrt
    w52_lwpr_date whol_loan_rmnd_rate ssts_yn stck_shrn_iscd fcam_cnnm cpfn_cnnm apprch_rate
    frgn_hldn_qty vi_cls_code ovtm_vi_cls_code last_ssts_cntg_qty invt_caful_yn mrkt_warn_cls_code
    short_over_yn sltr_yn mang_issu_cls_code
"""
QUOTE_2 = """
    rprs_mrkt_kor_name new_hgpr_lwpr_cls_code mxpr_llam_cls_code crdt_able_yn stck_mxpr elw_pblc_yn
    prdy_clpr_vrss_oprc_rate crdt_rate marg_rate lwpr_vrss_prpr lwpr_vrss_prpr_sign
    prdy_clpr_vrss_lwpr_rate stck_lwpr hgpr_vrss_prpr hgpr_vrss_prpr_sign prdy_clpr_vrss_hgpr_rate
    stck_hgpr oprc_vrss_prpr oprc_vrss_prpr_sign mang_issu_yn divi_app_cls_code short_over_yn
    mrkt_warn_cls_code invt_caful_yn stange_runup_yn ssts_hot_yn low_current_yn vi_cls_code
    short_over_cls_code stck_llam new_lstn_cls_name vlnt_deal_cls_name flng_cls_name
    revl_issu_reas_name mrkt_warn_cls_name stck_sdpr bstp_cls_code stck_prdy_clpr insn_pbnt_yn
    fcam_mod_cls_name stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_tr_pbmn acml_vol
    prdy_vrss_vol_rate bstp_kor_isnm sltr_yn trht_yn oprc_rang_cont_yn vlnt_fin_cls_code stck_oprc
    prdy_vol
"""
LEVELS = " ".join(
    f"{side}{n} {side}_rsqn{n} {side}_rsqn_icdc{n}"
    for side in ("askp", "bidp")
    for n in range(1, 11)
)
BOOK = f"""
    aspr_acpt_hour {LEVELS} total_askp_rsqn total_bidp_rsqn total_askp_rsqn_icdc
    total_bidp_rsqn_icdc ovtm_total_askp_icdc ovtm_total_bidp_icdc ovtm_total_askp_rsqn
    ovtm_total_bidp_rsqn ntby_aspr_rsqn new_mkop_cls_code
"""
EXPECTED = """
    antc_mkop_cls_code stck_prpr stck_oprc stck_hgpr stck_lwpr stck_sdpr antc_cnpr
    antc_cntg_vrss_sign antc_cntg_vrss antc_cntg_prdy_ctrt antc_vol stck_shrn_iscd vi_cls_code
"""
TRADE = "stck_cntg_hour stck_prpr prdy_vrss prdy_vrss_sign cntg_vol tday_rltv prdy_ctrt"
TIMED = """
    stck_cntg_hour stck_pbpr prdy_vrss prdy_vrss_sign prdy_ctrt askp bidp tday_rltv acml_vol cnqn
"""
TIMED_SUMMARY = """
    stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_vol prdy_vol rprs_mrkt_kor_name
"""
DAY = """
    stck_bsop_date stck_clpr stck_oprc stck_hgpr stck_lwpr acml_vol acml_tr_pbmn flng_cls_code
    prtt_rate mod_yn prdy_vrss_sign prdy_vrss revl_issu_reas
"""
DAY_SUMMARY = """
    prdy_vrss prdy_vrss_sign prdy_ctrt stck_prdy_clpr acml_vol acml_tr_pbmn hts_kor_isnm stck_prpr
    stck_shrn_iscd prdy_vol stck_mxpr stck_llam stck_oprc stck_hgpr stck_lwpr stck_prdy_oprc
    stck_prdy_hgpr stck_prdy_lwpr askp bidp prdy_vrss_vol vol_tnrt stck_fcam lstn_stcn cpfn hts_avls
    per eps pbr itewhol_loan_rmnd_ratem
"""
RECENT = """
    stck_bsop_date stck_oprc stck_hgpr stck_lwpr stck_clpr acml_vol prdy_vrss_vol_rate prdy_vrss
    prdy_vrss_sign prdy_ctrt hts_frgn_ehrt frgn_ntby_qty flng_cls_code acml_prtt_rate
"""
MINUTE = """
    stck_bsop_date stck_cntg_hour stck_prpr stck_oprc stck_hgpr stck_lwpr cntg_vol acml_tr_pbmn
"""
MINUTE_SUMMARY = """
    prdy_vrss prdy_vrss_sign prdy_ctrt stck_prdy_clpr acml_vol acml_tr_pbmn hts_kor_isnm stck_prpr
"""
INVESTORS = """
    stck_bsop_date stck_clpr prdy_vrss prdy_vrss_sign prsn_ntby_qty frgn_ntby_qty orgn_ntby_qty
    prsn_ntby_tr_pbmn frgn_ntby_tr_pbmn orgn_ntby_tr_pbmn prsn_shnu_vol frgn_shnu_vol orgn_shnu_vol
    prsn_shnu_tr_pbmn frgn_shnu_tr_pbmn orgn_shnu_tr_pbmn prsn_seln_vol frgn_seln_vol orgn_seln_vol
    prsn_seln_tr_pbmn frgn_seln_tr_pbmn orgn_seln_tr_pbmn
"""
INFO = """
    pdno prdt_type_cd prdt_name prdt_name120 prdt_abrv_name prdt_eng_name prdt_eng_name120
    prdt_eng_abrv_name std_pdno shtn_pdno prdt_sale_stat_cd prdt_risk_grad_cd prdt_clsf_cd
    prdt_clsf_name sale_strt_dt sale_end_dt wrap_asst_type_cd ivst_prdt_type_cd
    ivst_prdt_type_cd_name frst_erlm_dt
"""
STOCK_INFO = """
    pdno prdt_type_cd prdt_name prdt_name120 prdt_abrv_name prdt_eng_name prdt_eng_name120
    prdt_eng_abrv_name mket_id_cd scty_grp_id_cd excg_dvsn_cd setl_mmdd lstg_stqt lstg_cptl_amt cpta
    papr issu_pric kospi200_item_yn scts_mket_lstg_dt scts_mket_lstg_abol_dt kosdaq_mket_lstg_dt
    kosdaq_mket_lstg_abol_dt frbd_mket_lstg_dt frbd_mket_lstg_abol_dt reits_kind_cd etf_dvsn_cd
    oilf_fund_yn idx_bztp_lcls_cd idx_bztp_mcls_cd idx_bztp_scls_cd idx_bztp_lcls_cd_name
    idx_bztp_mcls_cd_name idx_bztp_scls_cd_name stck_kind_cd mfnd_opng_dt mfnd_end_dt
    dpsi_erlm_cncl_dt etf_cu_qty std_pdno dpsi_aptm_erlm_yn etf_txtn_type_cd etf_type_cd
    lstg_abol_dt nwst_odst_dvsn_cd sbst_pric thco_sbst_pric thco_sbst_pric_chng_dt tr_stop_yn
    admn_item_yn thdt_clpr bfdy_clpr clpr_chng_dt std_idst_clsf_cd std_idst_clsf_cd_name ocr_no
    crfd_item_yn elec_scty_yn issu_istt_cd etf_chas_erng_rt_dbnb etf_etn_ivst_heed_item_yn
    stln_int_rt_dvsn_cd frnr_psnl_lmt_rt lstg_rqsr_issu_istt_cd lstg_rqsr_item_cd
    trst_istt_issu_istt_cd cptt_trad_tr_psbl_yn nxt_tr_stop_yn
"""
INDEX = """
    bstp_nmix_prpr bstp_nmix_prdy_vrss prdy_vrss_sign bstp_nmix_prdy_ctrt acml_vol prdy_vol
    acml_tr_pbmn prdy_tr_pbmn bstp_nmix_oprc prdy_nmix_vrss_nmix_oprc oprc_vrss_prpr_sign
    bstp_nmix_oprc_prdy_ctrt bstp_nmix_hgpr prdy_nmix_vrss_nmix_hgpr hgpr_vrss_prpr_sign
    bstp_nmix_hgpr_prdy_ctrt bstp_nmix_lwpr prdy_clpr_vrss_lwpr lwpr_vrss_prpr_sign
    prdy_clpr_vrss_lwpr_rate ascn_issu_cnt uplm_issu_cnt stnr_issu_cnt down_issu_cnt lslm_issu_cnt
    dryy_bstp_nmix_hgpr dryy_hgpr_vrss_prpr_rate dryy_bstp_nmix_hgpr_date dryy_bstp_nmix_lwpr
    dryy_lwpr_vrss_prpr_rate dryy_bstp_nmix_lwpr_date total_askp_rsqn total_bidp_rsqn seln_rsqn_rate
    shnu_rsqn_rate ntby_rsqn
"""
VOLUME_RANK = """
    hts_kor_isnm mksc_shrn_iscd data_rank stck_prpr prdy_vrss_sign prdy_vrss prdy_ctrt acml_vol
    prdy_vol lstn_stcn avrg_vol n_befr_clpr_vrss_prpr_rate vol_inrt vol_tnrt nday_vol_tnrt
    avrg_tr_pbmn tr_pbmn_tnrt nday_tr_pbmn_tnrt acml_tr_pbmn
"""
CHANGE_RANK = """
    stck_shrn_iscd data_rank hts_kor_isnm stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_vol
    stck_hgpr hgpr_hour acml_hgpr_date stck_lwpr lwpr_hour acml_lwpr_date lwpr_vrss_prpr_rate
    dsgt_date_clpr_vrss_prpr_rate cnnt_ascn_dynu hgpr_vrss_prpr_rate cnnt_down_dynu
    oprc_vrss_prpr_sign oprc_vrss_prpr oprc_vrss_prpr_rate prd_rsfl prd_rsfl_rate
"""
INTERRUPTED = """
    hts_kor_isnm mksc_shrn_iscd vi_cls_code bsop_date cntg_vi_hour vi_cncl_hour vi_kind_code vi_prc
    vi_stnd_prc vi_dprt vi_dmc_stnd_prc vi_dmc_dprt vi_count
"""
HOLIDAY = "bass_dt wday_dvsn_cd bzdy_yn tr_day_yn opnd_yn sttl_day_yn"
MULTI = """
    kospi_kosdaq_cls_name mrkt_trtm_cls_name hour_cls_code inter_shrn_iscd inter_kor_isnm
    inter2_prpr inter2_prdy_vrss prdy_vrss_sign prdy_ctrt acml_vol inter2_oprc inter2_hgpr
    inter2_lwpr inter2_llam inter2_mxpr inter2_askp inter2_bidp seln_rsqn shnu_rsqn total_askp_rsqn
    total_bidp_rsqn acml_tr_pbmn inter2_prdy_clpr oprc_vrss_hgpr_rate intr_antc_cntg_vrss
    intr_antc_cntg_vrss_sign intr_antc_cntg_prdy_ctrt intr_antc_vol inter2_sdpr
"""
HOLDING = """
    pdno prdt_name trad_dvsn_name bfdy_buy_qty bfdy_sll_qty thdt_buyqty thdt_sll_qty hldg_qty
    ord_psbl_qty pchs_avg_pric pchs_amt prpr evlu_amt evlu_pfls_amt evlu_pfls_rt evlu_erng_rt
    loan_dt loan_amt stln_slng_chgs expd_dt fltt_rt bfdy_cprs_icdc stck_loan_unpr
"""
MARGIN = "item_mgna_rt_name grta_rt_name sbst_pric"  # in inquire-balance only
BALANCE = """
    dnca_tot_amt nxdy_excc_amt prvs_rcdl_excc_amt cma_evlu_amt bfdy_buy_amt thdt_buy_amt
    nxdy_auto_rdpt_amt bfdy_sll_amt thdt_sll_amt d2_auto_rdpt_amt bfdy_tlex_amt thdt_tlex_amt
    tot_loan_amt scts_evlu_amt tot_evlu_amt nass_amt fncg_gld_auto_rdpt_yn pchs_amt_smtl_amt
    evlu_amt_smtl_amt evlu_pfls_smtl_amt tot_stln_slng_chgs bfdy_tot_asst_evlu_amt asst_icdc_amt
    asst_icdc_erng_rt
"""
REALISED = "rlzt_pfls rlzt_erng_rt real_evlu_pfls real_evlu_pfls_erng_rt"
POWER = """
    ord_psbl_cash ord_psbl_sbst ruse_psbl_amt fund_rpch_chgs psbl_qty_calc_unpr nrcvb_buy_amt
    nrcvb_buy_qty max_buy_amt max_buy_qty cma_evlu_amt ovrs_re_use_amt_wcrc ord_psbl_frcr_amt_wcrc
"""
SELLABLE = """
    pdno buy_qty sll_qty cblc_qty nsvg_qty ord_psbl_qty pchs_avg_pric pchs_amt now_pric evlu_amt
    evlu_pfls_amt evlu_pfls_rt
"""
OPEN = """
    ord_gno_brno odno orgn_odno ord_dvsn_name pdno prdt_name rvse_cncl_dvsn_name ord_qty ord_unpr
    ord_tmd tot_ccld_qty tot_ccld_amt psbl_qty sll_buy_dvsn_cd ord_dvsn_cd mgco_aptm_odno
    excg_dvsn_cd excg_id_dvsn_cd excg_id_dvsn_name stpm_cndt_pric stpm_efct_occr_yn
"""
ORDER = """
    ord_dt ord_gno_brno odno orgn_odno ord_dvsn_name sll_buy_dvsn_cd sll_buy_dvsn_cd_name pdno
    prdt_name ord_qty ord_unpr ord_tmd tot_ccld_qty avg_prvs cncl_yn ccld_yn tot_ccld_amt loan_dt
    ordr_empno ord_dvsn_cd cncl_cfrm_qty cnc_cfrm_qty rmn_qty rjct_qty ccld_cndt_name inqr_ip_addr
    cpbc_ordp_ord_rcit_dvsn_cd cpbc_ordp_infm_mthd_dvsn_cd infm_tmd ctac_tlno prdt_type_cd
    excg_dvsn_cd cpbc_ordp_mtrl_dvsn_cd ord_orgno rsvn_ord_end_dt excg_id_dvsn_Cd stpm_cndt_pric
    stpm_efct_occr_dtmd
"""
ORDER_TOTAL = "tot_ord_qty tot_ccld_qty tot_ccld_amt prsm_tlex_smtl pchs_avg_pric"
PROFIT_DAY = "trad_dt buy_amt sll_amt rlzt_pfls fee loan_int tl_tax pfls_rt sll_qty1 buy_qty1"
PROFIT_TRADE = """
    trad_dt pdno prdt_name trad_dvsn_name loan_dt hldg_qty pchs_unpr buy_qty buy_amt sll_pric
    sll_qty sll_amt rlzt_pfls pfls_rt fee tl_tax loan_int
"""
PROFIT_TOTAL = """
    sll_qty_smtl sll_tr_amt_smtl sll_fee_smtl sll_tltx_smtl sll_excc_amt_smtl buy_tr_amt_smtl
    buy_fee_smtl buy_tax_smtl buy_excc_amt_smtl tot_qty tot_tr_amt tot_fee tot_tltx tot_excc_amt
    tot_rlzt_pfls loan_int
"""
